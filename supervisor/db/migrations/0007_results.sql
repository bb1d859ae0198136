-- 0007_results: what handlers return, who waits for it, and how far a running job has come.
--
-- Placeholders  {schema} is the quoted schema name; nothing else is replaced.

-- What the last run of a job said of itself (Job.progress). In no index: saying it is a HOT update.
alter table {schema}.job
    add column progress      real,
    add column progress_note text,
    add column progress_at   timestamptz,
    -- Set with cancel_at when an operator cancels by force: from then on its worker may be killed for it.
    add column kill_at       timestamptz;

-- Until when what this run returned is kept; null for one that keeps nothing.
alter table {schema}.history add column result_until timestamptz;

-- What a handler with result_for returned. Written in the transaction that ends the run, pruned by age.
create table {schema}.result (
    job_id     bigint primary key,
    value      jsonb       not null,
    stored_at  timestamptz not null default clock_timestamp(),
    expires_at timestamptz not null
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
create index result_expires on {schema}.result (expires_at);

-- Who waits for the end of which job. An end of a run sends a notification only to those that stand here, and most
-- runs are awaited by nobody. A waiter that died is forgotten at `until`: living ones put it off.
--
-- Unlogged: after a crash or a failover every waiter has lost its connection, and comes again.
create unlogged table {schema}.awaited (
    job_id bigint      not null,
    -- The channel on which it listens.
    waiter text collate "C" not null,
    until  timestamptz not null,
    primary key (job_id, waiter),
    constraint awaited_waiter_check check (octet_length(waiter) between 1 and 63)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
-- Whether anybody waits at all is asked from now on: what was answered lies before, however long it stays in the index.
create index awaited_until on {schema}.awaited (until);

-- As before, with more at its end: what a running job says of its progress, and until when a result is kept.
create or replace view {schema}.jobs as
select j.id,
       case when j.lease is null then 'queued' else 'running' end as status,
       j.queue, j.kind, (case when j.suspect then j.priority - 1000 else j.priority end)::smallint as priority,
       case when g.gate is null then j.run_at else g.due_at end as run_at,
       j.attempts, j.max_attempts, j.crashes, j.max_crashes, j.suspect, j.claims,
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
