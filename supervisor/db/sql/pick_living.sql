-- pick_living: the next ids to cancel, of those that a filter names.
--
-- Params   after, upto: ids above after, up to upto. statuses: text[] of queued, running. scheduled: only
--          those due later (true), or all (null). queue, kind: null takes any. limit.
-- Returns  ids, rising; fewer than limit at the end.
-- Locks    none: cancel_job takes what is still there.
-- Index    job_pkey.
select j.id
  from {schema}.job j
 where j.id > %(after)s::bigint
   and j.id <= %(upto)s::bigint
   and ((j.lease is null and 'queued' = any (%(statuses)s::text[]))
        or (j.lease is not null and 'running' = any (%(statuses)s::text[])))
   and (%(scheduled)s::boolean is null or j.run_at > now())
   and (%(queue)s::text is null or j.queue = %(queue)s)
   and (%(kind)s::text is null or j.kind = %(kind)s)
 order by j.id
 limit %(limit)s
