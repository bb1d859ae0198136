-- doctor_parents: jobs that wait for dead or cancelled ones, until somebody retries those (after_failed 'hold').
--
-- Params   limit: the most links looked at.
-- Returns  parent, its status, child.
-- Locks    none.
-- Index    job_after_pkey from its start; dead_letter_pkey and gated_pkey once per link.
select l.parent, d.status, l.child
  from (select x.parent, x.child, x.failed from {schema}.job_after x order by x.parent, x.child limit %(limit)s) l
 cross join lateral (select p.status from {schema}.dead_letter p where p.id = l.parent offset 0) d
 cross join lateral (select from {schema}.gated g where g.job_id = l.child and g.gate = 1 offset 0) w
 where l.failed = 'hold'
 order by l.parent, l.child
