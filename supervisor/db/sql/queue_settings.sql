-- queue_settings: every queue that has settings, and how many of its places are taken.
--
-- Returns  name, paused_at, paused_by, max_running, limited_at, counted, running (null: no limit), rate_limit, rate_period
--          in seconds, for how many seconds it has been paused, how many its rate lets start now (null: no rate).
-- Locks    none.
-- Index    place_pkey and job_pkey, as often as there are places; pace_pkey.
select q.name, q.paused_at, q.paused_by, q.max_running, q.limited_at, q.counted,
       case when q.max_running is not null then (select cardinality(h.ids) from {schema}.held_places(q.name) h) end,
       q.rate_limit, extract(epoch from q.rate_period)::float8,
       extract(epoch from clock_timestamp() - q.paused_at)::float8,
       case when q.rate_limit is not null then (select p.free from {schema}.pace_of(q.name, clock_timestamp()) p) end
  from {schema}.queue q
 order by q.name
