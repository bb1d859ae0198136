-- publish_mark: raise a lane's mark for workers that start cold.
--
-- It is lowered only when it lies ahead of the clock: the clock was set back, and what is enqueued now
-- would stay below the mark until the clock has caught up.
update {schema}.lane
   set mark_at = %(mark_at)s::timestamptz, mark_id = %(mark_id)s, seen_at = clock_timestamp()
 where queue = %(queue)s and priority = %(priority)s
   and ((mark_at, mark_id) < (%(mark_at)s::timestamptz, %(mark_id)s) or mark_at > clock_timestamp())
