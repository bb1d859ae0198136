-- try_tend: be the one supervisor that sweeps, until this transaction ends. Never waits.
--
-- Params   idle_ms: a holder that is silent for so long in the middle (stopped, its machine paused) loses
--          its connection, and with it the lock: else nobody would sweep or reap until it is back.
select pg_try_advisory_xact_lock(hashtextextended('pg-supervisor tend ' || {schema_literal}, 0))
  from set_config('idle_in_transaction_session_timeout', %(idle_ms)s::text, true)
