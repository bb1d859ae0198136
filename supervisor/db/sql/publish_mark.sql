-- publish_mark: raise a lane's mark for workers that start cold. It is never lowered.
update {schema}.lane
   set mark_at = %(mark_at)s::timestamptz, mark_id = %(mark_id)s, seen_at = clock_timestamp()
 where queue = %(queue)s and priority = %(priority)s
   and (mark_at, mark_id) < (%(mark_at)s::timestamptz, %(mark_id)s)
