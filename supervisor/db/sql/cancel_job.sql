-- cancel_job: take jobs out of the queue, or ask running ones to stop. See functions/080_operate.sql.
--
-- Params   ids. kill_s: seconds until a worker is killed for a handler that does not stop; null: never.
select id, what from {schema}.cancel_job(%(ids)s::bigint[], make_interval(secs => %(kill_s)s::float8))
