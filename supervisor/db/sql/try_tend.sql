-- try_tend: be the one supervisor that sweeps, until this transaction ends. Never waits.
select pg_try_advisory_xact_lock(hashtextextended('pg-supervisor tend ' || {schema_literal}, 0))
