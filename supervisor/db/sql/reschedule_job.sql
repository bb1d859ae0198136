-- reschedule_job: give queued jobs another time. See functions/080_operate.sql.
--
-- Params   ids; at: a point in time, or delay_s: seconds from now; neither: now.
select id, run_at
  from {schema}.reschedule_job(%(ids)s::bigint[], %(at)s::timestamptz, make_interval(secs => %(delay_s)s::float8))
