-- doctor_leases: jobs that a session holds which is not there any more, long after a sweep should have freed them.
--
-- Params   late_s: how long that is. limit: the most rows looked at per lane, from its start: what was claimed was
--          at the front.
-- Returns  one row: how many, and the ids of some.
-- Locks    none.
-- Index    job_lane, then session_pkey per leased row.
select count(*), coalesce((pg_catalog.array_agg(x.id order by x.id))[1:10], '{}')
  from {schema}.lane l
 cross join lateral (
       select j.id, j.lease, j.started_at from {schema}.job j
        where j.queue = l.queue and j.priority = l.priority
        order by j.run_at, j.id + 0 limit %(limit)s) x
  left join {schema}.session s on s.id = x.lease
 where x.lease is not null
   and x.started_at < pg_catalog.clock_timestamp() - make_interval(secs => %(late_s)s)
   and (s.id is null or s.closed_at < pg_catalog.clock_timestamp() - make_interval(secs => %(late_s)s))
