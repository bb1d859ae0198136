-- running_jobs: jobs that are claimed now, the latest start first.
--
-- No index knows what runs (a claim must stay cheap), so two places are looked at: what workers say they run,
-- and the front of each lane, where claimed rows are.
-- Params   window: the most rows looked at of each lane's front. queue, kind, holds, says, written: as list_jobs.
--          limit: the most rows returned.
-- Returns  looked: rows looked at; then a job as in list_jobs. One row at least: id is null when nothing runs.
-- Locks    none.
-- Index    job_lane from each lane's start, job_pkey.
with said as (
    select (one.job ->> 'id')::bigint as id
      from {schema}.session s
     cross join lateral jsonb_array_elements(
           case when jsonb_typeof(s.doing -> 'jobs') = 'array' then s.doing -> 'jobs' else '[]' end) as one (job)
     where s.closed_at is null and one.job ->> 'id' ~ '^[0-9]{1,18}$'),
front as materialized (
    select x.id, x.lease
      from (select l.queue, l.priority from {schema}.lane l
             where %(queue)s::text is null or l.queue = %(queue)s::text
             order by l.queue, l.priority limit 1000) l
     cross join lateral (
           select j.id, j.lease from {schema}.job j
            where j.queue = l.queue and j.priority = l.priority and j.run_at <= now()
            order by j.run_at, j.id + 0 limit %(window)s::integer) x),
held as (
    select id from said union select id from front where lease is not null)
select n.looked, x.*
  from (select (select count(*) from front) + (select count(*) from said) as looked) n
  left join lateral (
       select j.id, 'running' as status, j.queue, j.kind,
              (case when j.priority > 500 then j.priority - 1000 else j.priority end)::smallint as priority,
              j.attempts, j.max_attempts, j.crashes, j.run_at, j.created_at, j.started_at, null::timestamptz as finished_at,
              null::text as reason, left(j.last_error, 2000) as last_error
         from held
        cross join lateral (select * from {schema}.job j where j.id = held.id offset 0) j
        where j.lease is not null
          and (%(queue)s::text is null or j.queue = %(queue)s::text)
          and (%(kind)s::text is null or j.kind = %(kind)s::text)
          and (%(holds)s::jsonb is null or j.payload @> %(holds)s::jsonb)
          and (%(says)s::text is null or strpos(lower(j.payload::text), %(says)s::text) > 0
                or case when %(written)s::text is not null
                        then strpos(lower(j.payload::text), %(written)s::text) > 0 else false end)
        order by j.started_at desc, j.id desc limit %(limit)s) x on true
