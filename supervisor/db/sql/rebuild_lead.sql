-- rebuild_lead: be the one supervisor that rebuilds indexes, until this connection ends. Never waits.
--
-- Locks    an advisory one of the session: the connection must be no pooler's.
select pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended('pg-supervisor rebuild ' || {schema_literal}, 0))
