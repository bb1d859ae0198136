-- queue_settings: every queue that has settings, and how many of its places are taken.
--
-- Returns  name, paused_at, paused_by, max_running, limited_at, counted, running (null: no limit), rate_limit, rate_period
--          in seconds.
-- Locks    none.
-- Index    place_pkey and job_pkey, as often as there are places.
select q.name, q.paused_at, q.paused_by, q.max_running, q.limited_at, q.counted,
       case when q.max_running is not null then (select cardinality(h.ids) from {schema}.held_places(q.name) h) end,
       q.rate_limit, extract(epoch from q.rate_period)::float8
  from {schema}.queue q
 order by q.name
