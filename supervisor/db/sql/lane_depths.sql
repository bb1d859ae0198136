-- lane_depths: how many jobs wait in each lane, and since when.
--
-- Params   limit: the most rows counted per lane and kind of waiting; a count of limit means "or more".
-- Returns  per lane: queue, priority, due (run_at has come), scheduled (it has not, and the job is at no gate: those are
--          parked, see waiting_depths), seconds that the first due job has waited (null: none is due).
-- Locks    none.
-- Index    job_lane, from the lane's published low-water mark: ten million rows queued, or a pinned
--          horizon behind the mark, cost no more than limit rows per lane.
select l.queue, l.priority, due.count, later.count,
       extract(epoch from clock_timestamp() - due.first)::float8
  from {schema}.lane l
 cross join lateral (
       select count(*), min(x.run_at) as first from (
           select j.run_at from {schema}.job j
            where j.queue = l.queue and j.priority = l.priority and j.lease is null and j.run_at <= now()
              and (j.run_at, j.id + 0) >= (l.mark_at, l.mark_id)
            order by j.run_at, j.id + 0 limit %(limit)s) x) due
 cross join lateral (
       select count(*) from (
           select from {schema}.job j
            where j.queue = l.queue and j.priority = l.priority and j.lease is null and j.run_at > now()
              and j.run_at < '9999-12-31 00:00:00+00'
            order by j.run_at, j.id + 0 limit %(limit)s) x) later
 order by l.queue, l.priority
