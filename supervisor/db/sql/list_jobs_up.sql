-- list_jobs_up: jobs of a range of ids, earliest first: the page before one of list_jobs.
--
-- All is as there, the other way round: `after` for `before`, the edge is the highest id looked at in every table.
-- Index    as list_jobs.
with living as materialized (
    select j.id, case when j.lease is null then 'queued' else 'running' end as status, j.queue, j.kind,
           (case when j.priority > 500 then j.priority - 1000 else j.priority end)::smallint as priority,
           j.attempts, j.max_attempts, j.crashes, coalesce(g.due_at, j.run_at) as run_at, j.created_at, j.started_at,
           null::timestamptz as finished_at, null::text as reason, j.last_error,
           (array['parents', 'order', 'concurrency', 'rate'])[g.gate] as waits_for,
           case when j.lease is null then %(queued)s::boolean else %(running)s::boolean end
           and (%(scheduled)s::boolean is null or coalesce(g.due_at, j.run_at) > now())
           and (%(queue)s::text is null or j.queue = %(queue)s::text)
           and (%(kind)s::text is null or j.kind = %(kind)s::text)
           and (%(holds)s::jsonb is null or j.payload @> %(holds)s::jsonb)
           and (%(says)s::text is null or strpos(lower(j.payload::text), %(says)s::text) > 0
                or case when %(written)s::text is not null
                        then strpos(lower(j.payload::text), %(written)s::text) > 0 else false end) as fits
      from {schema}.job j
      left join lateral (select g.due_at, g.gate from {schema}.gated g
                          where j.gated and g.job_id = j.id and g.gate between 1 and 4 offset 0) g on true
     where j.id > %(after)s::bigint
     order by j.id limit case when %(living)s::boolean then %(window)s::integer else 0 end),
buried as materialized (
    select d.id, d.status, d.queue, d.kind, d.priority, d.attempts, d.max_attempts, d.crashes, d.run_at, d.created_at,
           d.started_at, d.finished_at, d.reason, d.last_error, null::text as waits_for,
           case when d.status = 'dead' then %(dead)s::boolean else %(cancelled)s::boolean end
           and (%(queue)s::text is null or d.queue = %(queue)s::text)
           and (%(kind)s::text is null or d.kind = %(kind)s::text)
           and (%(holds)s::jsonb is null or d.payload @> %(holds)s::jsonb)
           and (%(says)s::text is null or strpos(lower(d.payload::text), %(says)s::text) > 0
                or case when %(written)s::text is not null
                        then strpos(lower(d.payload::text), %(written)s::text) > 0 else false end) as fits
      from {schema}.dead_letter d
     where d.id > %(after)s::bigint
     order by d.id limit case when %(buried)s::boolean then %(window)s::integer else 0 end),
done as materialized (
    select h.id, 'done', h.queue, h.kind, h.priority, h.attempts, h.max_attempts, h.crashes, h.run_at, h.created_at,
           h.started_at, h.finished_at, null, h.last_error, null::text as waits_for,
           (%(queue)s::text is null or h.queue = %(queue)s::text)
           and (%(kind)s::text is null or h.kind = %(kind)s::text)
           and (%(holds)s::jsonb is null or coalesce(h.payload @> %(holds)s::jsonb, false))
           and (%(says)s::text is null or coalesce(
                    strpos(lower(h.payload::text), %(says)s::text) > 0
                    or case when %(written)s::text is not null
                            then strpos(lower(h.payload::text), %(written)s::text) > 0 else false end, false)) as fits
      from {schema}.history h
     where h.id > %(after)s::bigint
     order by h.id limit case when %(done)s::boolean then %(window)s::integer else 0 end),
edge as (
    select least((select case when count(*) = %(window)s::integer then max(id) end from living),
                    (select case when count(*) = %(window)s::integer then max(id) end from buried),
                    (select case when count(*) = %(window)s::integer then max(id) end from done)) as id,
           (select count(*) from living) + (select count(*) from buried) + (select count(*) from done) as looked)
select edge.id as edge, edge.looked, x.id, x.status, x.queue, x.kind, x.priority, x.attempts, x.max_attempts, x.crashes,
       x.run_at, x.created_at, x.started_at, x.finished_at, x.reason, left(x.last_error, 2000) as last_error, x.waits_for
  from edge
  left join lateral (
       select all_of.* from (select * from living union all select * from buried union all select * from done) all_of
        where all_of.fits and all_of.id <= coalesce(edge.id, 9223372036854775807)
        order by all_of.id limit %(limit)s) x on true
