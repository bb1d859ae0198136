-- waiting_depths: how many jobs of each lane wait at a gate.
--
-- Params   limit: the most counted per lane; a count of limit means "or more".
-- Returns  queue, count; a lane without such jobs is missing.
-- Locks    none.
-- Index    job_lane, where all of them stand: they are parked at the latest time there is. Entries of those that were let
--          in are dead there: under an old snapshot they are walked over, so the caller limits the time.
select l.queue, x.count
  from {schema}.lane l
 cross join lateral (
       select count(*) from (
           select from {schema}.job j
            where j.queue = l.queue and j.priority = l.priority and j.run_at = '9999-12-31 00:00:00+00'
            order by j.run_at, j.id + 0 limit %(limit)s) y) x
 where x.count > 0
