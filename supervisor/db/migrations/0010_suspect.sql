-- 0010_suspect: whether a job is a suspect is read off its priority, wherever it is asked.
--
-- Placeholders  {schema} is the quoted schema name; nothing else is replaced.
--
-- A stored generated column costs an update that does not concern it more than one that does: the server then reads and
-- makes ready the column's expression anew for each row (ExecInitGenerated, PostgreSQL 16 to 18). That was a tenth of what
-- a job takes of it. The column stays, for the release before and for people; who raises a priority sets it too.
alter table {schema}.job
    alter column suspect drop expression if exists,
    alter column suspect set default false;

-- As before, but for that.
create or replace view {schema}.jobs as
select j.id,
       case when j.lease is null then 'queued' else 'running' end as status,
       j.queue, j.kind, (case when j.priority > 500 then j.priority - 1000 else j.priority end)::smallint as priority,
       case when g.gate is null then j.run_at else g.due_at end as run_at,
       j.attempts, j.max_attempts, j.crashes, j.max_crashes, j.priority > 500 as suspect, j.claims,
       s.name as locked_by, s.expires_at as locked_until,
       j.unique_key, j.timeout, j.created_at, j.started_at, null::timestamptz as finished_at,
       null::text as reason, j.last_error, j.errors, j.cancel_at, j.payload, j.headers,
       (array['parents', 'order', 'concurrency', 'rate'])[g.gate] as waits_for, g.ordering_key, g.concurrency_key, g.rate_key,
       case when j.progress_at >= j.started_at then j.progress end as progress,
       case when j.progress_at >= j.started_at then j.progress_note end as progress_note,
       case when j.progress_at >= j.started_at then j.progress_at end as progress_at,
       null::timestamptz as result_until
  from {schema}.job j
  left join {schema}.session s on s.id = j.lease
  left join {schema}.gated g on j.gated and g.job_id = j.id
union all
select d.id, d.status, d.queue, d.kind, d.priority, d.run_at,
       d.attempts, d.max_attempts, d.crashes, d.max_crashes, false, d.claims,
       null, null,
       d.unique_key, d.timeout, d.created_at, d.started_at, d.finished_at,
       d.reason, d.last_error, d.errors, null, d.payload, d.headers,
       null, null, null, null,
       null, null, null, null
  from {schema}.dead_letter d
union all
select h.id, 'done', h.queue, h.kind, h.priority, h.run_at,
       h.attempts, h.max_attempts, h.crashes, h.max_crashes, false, h.claims,
       null, null,
       h.unique_key, null, h.created_at, h.started_at, h.finished_at,
       null, h.last_error, coalesce(h.errors, '[]'), null, h.payload, h.headers,
       null, null, null, null,
       null, null, null, h.result_until
  from {schema}.history h;
