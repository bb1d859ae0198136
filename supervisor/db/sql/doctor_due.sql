-- doctor_due: since when each queue's first due job waits.
--
-- Returns  queue, seconds; only queues with a due job.
-- Locks    none.
-- Index    job_lane, one row per lane from its published low-water mark.
select l.queue, max(extract(epoch from pg_catalog.clock_timestamp() - x.run_at))::float8
  from {schema}.lane l
 cross join lateral (
       select j.run_at from {schema}.job j
        where j.queue = l.queue and j.priority = l.priority and j.lease is null
          and j.run_at <= pg_catalog.clock_timestamp() and (j.run_at, j.id + 0) >= (l.mark_at, l.mark_id)
        order by j.run_at, j.id + 0 limit 1) x
 group by l.queue
 order by l.queue
