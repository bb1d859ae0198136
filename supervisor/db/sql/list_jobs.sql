-- list_jobs: a page of jobs, latest first.
--
-- Params   before: only ids below it (the last id of the page before); null starts at the latest.
--          statuses: text[] of queued, running, done, dead, cancelled. scheduled: of the queued ones, only
--          those due later (true), or all (null). queue, kind: null takes any. limit: the page's size.
-- Returns  id, status, queue, kind, priority, attempts, max_attempts, crashes, run_at, created_at,
--          started_at, finished_at, reason, last_error; empty past the last page.
-- Locks    none.
-- Index    job_pkey, dead_letter_pkey, history_id, each from its upper end. Each part is limited by itself,
--          so a page costs the same at any depth unless a filter fits few rows.
select x.* from (
    (select j.id, case when j.lease is null then 'queued' else 'running' end as status, j.queue, j.kind,
            (case when j.suspect then j.priority - 1000 else j.priority end)::smallint as priority,
            j.attempts, j.max_attempts, j.crashes, j.run_at, j.created_at, j.started_at, null::timestamptz as finished_at,
            null::text as reason, left(j.last_error, 2000) as last_error
       from {schema}.job j
      where (%(before)s::bigint is null or j.id < %(before)s::bigint)
        and ((j.lease is null and 'queued' = any (%(statuses)s::text[]))
             or (j.lease is not null and 'running' = any (%(statuses)s::text[])))
        and (%(scheduled)s::boolean is null or j.run_at > now())
        and (%(queue)s::text is null or j.queue = %(queue)s)
        and (%(kind)s::text is null or j.kind = %(kind)s)
      order by j.id desc limit %(limit)s)
    union all
    (select d.id, d.status, d.queue, d.kind, d.priority, d.attempts, d.max_attempts, d.crashes, d.run_at, d.created_at,
            d.started_at, d.finished_at, d.reason, left(d.last_error, 2000)
       from {schema}.dead_letter d
      where (%(before)s::bigint is null or d.id < %(before)s::bigint)
        and d.status = any (%(statuses)s::text[])
        and (%(queue)s::text is null or d.queue = %(queue)s)
        and (%(kind)s::text is null or d.kind = %(kind)s)
      order by d.id desc limit %(limit)s)
    union all
    (select h.id, 'done', h.queue, h.kind, h.priority, h.attempts, h.max_attempts, h.crashes, h.run_at, h.created_at,
            h.started_at, h.finished_at, null, left(h.last_error, 2000)
       from {schema}.history h
      where (%(before)s::bigint is null or h.id < %(before)s::bigint)
        and 'done' = any (%(statuses)s::text[])
        and (%(queue)s::text is null or h.queue = %(queue)s)
        and (%(kind)s::text is null or h.kind = %(kind)s)
      order by h.id desc limit %(limit)s)) x
 order by x.id desc
 limit %(limit)s
