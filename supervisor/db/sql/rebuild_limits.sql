-- rebuild_limits: bound what this connection's statements wait for and how long they work.
--
-- Params   lock_ms: the longest wait for one lock; statements that work concurrently wait for transactions by locks too.
--          work_ms: the longest statement.
-- Sets     for the session. One process of the server at a time, and no parallel ones: the queue is to notice nothing.
select pg_catalog.set_config('lock_timeout', %(lock_ms)s::text, false),
       pg_catalog.set_config('statement_timeout', %(work_ms)s::text, false),
       pg_catalog.set_config('max_parallel_maintenance_workers', '0', false)
