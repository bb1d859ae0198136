-- health_running: how many jobs of each queue are claimed, and since when the oldest runs.
--
-- Params   limit: the most rows looked at per lane, from its start: what runs was at the front.
-- Returns  queue, count, seconds since the first start; a queue without claimed jobs is missing.
-- Locks    none.
-- Index    job_lane. Rows ahead of a lane's low-water mark may be long dead and not vacuumed yet, so
--          this is the one count that a pinned horizon makes slow: the caller limits its time.
select l.queue, count(*), extract(epoch from clock_timestamp() - min(x.started_at))::float8
  from {schema}.lane l
 cross join lateral (
       select j.lease, j.started_at from {schema}.job j
        where j.queue = l.queue and j.priority = l.priority and j.run_at <= now()
        order by j.run_at, j.id + 0 limit %(limit)s) x
 where x.lease is not null
 group by l.queue
