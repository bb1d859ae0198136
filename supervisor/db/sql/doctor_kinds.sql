-- doctor_kinds: the kinds of jobs that wait, as far as a sample of each lane's front tells.
--
-- Params   limit: the most rows looked at per lane.
-- Returns  kind, how many of the sample, how many of those some worker has put back because it did not know them.
-- Locks    none.
-- Index    job_lane, from the lane's published low-water mark.
select x.kind, count(*), count(x.unknown_since)
  from {schema}.lane l
 cross join lateral (
       select j.kind, j.unknown_since from {schema}.job j
        where j.queue = l.queue and j.priority = l.priority and j.lease is null
          and (j.run_at, j.id + 0) >= (l.mark_at, l.mark_id)
        order by j.run_at, j.id + 0 limit %(limit)s) x
 group by x.kind
 order by 2 desc, 1
