-- holder: who runs a job, and what it says of it.
--
-- Params   id.
-- Returns  the worker's name, its lease's end, since when the job runs there, and the job's own part of
--          `doing` (null: not told yet); none when the job does not run.
-- Index    job_pkey, session_pkey.
select s.name, s.expires_at, j.started_at,
       (select one.job from jsonb_array_elements(
               case when jsonb_typeof(s.doing -> 'jobs') = 'array' then s.doing -> 'jobs' else '[]' end) as one (job)
         where one.job ->> 'id' = j.id::text limit 1)
  from {schema}.job j
  join {schema}.session s on s.id = j.lease
 where j.id = %(id)s::bigint
