-- named_jobs: what living jobs are, by their ids.
--
-- Params   ids.
-- Returns  id, kind, queue, attempts, max_attempts, crashes; a job that has ended is missing.
-- Index    job_pkey.
select j.id, j.kind, j.queue, j.attempts, j.max_attempts, j.crashes
  from unnest(%(ids)s::bigint[]) as named (id)
 cross join lateral (select * from {schema}.job j where j.id = named.id offset 0) j
