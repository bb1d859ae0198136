-- doctor_gated: what should not be among jobs with gates.
--
-- Params   limit: the most rows looked at of each kind, oldest ids first; of jobs that are parked per lane.
-- Returns  what, id. gone: keys of a job that is not there any more. stuck: a job that waits for nothing, and is parked all
--          the same: nobody will let it in.
-- Locks    none.
-- Index    gated_pkey from its start, job_pkey and dead_letter_pkey once per row; job_lane from where parked jobs begin.
select 'gone', x.job_id
  from (select g.job_id, g.gate from {schema}.gated g order by g.job_id limit %(limit)s) x
 where not exists (select from {schema}.job j where j.id = x.job_id)
   and not (x.gate in (8, 9) and exists (select from {schema}.dead_letter d where d.id = x.job_id))
union all
select 'stuck', y.id
  from {schema}.lane l
 cross join lateral (
       select j.id, j.lease from {schema}.job j
        where j.queue = l.queue and j.priority = l.priority and j.run_at = '9999-12-31 00:00:00+00'
        order by j.run_at, j.id + 0 limit %(limit)s) y
 where y.lease is null and not exists (select from {schema}.gated g where g.job_id = y.id and g.gate is not null)
