-- unset_queue: take limits of a queue away: all, or what. See functions/045_queue.sql.
select {schema}.unset_queue(%(queue)s, %(what)s)
