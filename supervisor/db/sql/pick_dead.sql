-- pick_dead: the next ids to retry, of those that a filter names.
--
-- Params   after, upto: ids above after, up to upto. statuses: text[] of dead, cancelled. queue, kind: null
--          takes any. limit.
-- Returns  ids, rising; fewer than limit at the end.
-- Locks    none: retry_job takes what is still there.
-- Index    dead_letter_pkey.
select d.id
  from {schema}.dead_letter d
 where d.id > %(after)s::bigint
   and d.id <= %(upto)s::bigint
   and d.status = any (%(statuses)s::text[])
   and (%(queue)s::text is null or d.queue = %(queue)s)
   and (%(kind)s::text is null or d.kind = %(kind)s)
 order by d.id
 limit %(limit)s
