-- doctor_queues: queues that are paused, or whose limit nobody has counted the runs for.
--
-- Returns  name, paused_by, seconds that it has been paused (null: it is not), max_running where it is not counted yet
--          (null: counted, or no limit), seconds since that limit was set.
-- Locks    none.
select q.name, q.paused_by, extract(epoch from clock_timestamp() - q.paused_at)::float8,
       case when not q.counted then q.max_running end,
       case when not q.counted then extract(epoch from clock_timestamp() - q.limited_at)::float8 end
  from {schema}.queue q
 where q.paused_at is not null or (q.max_running is not null and not q.counted)
 order by q.name
