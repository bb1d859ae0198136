-- unset_queue: take all limits of a queue away. See functions/045_queue.sql.
select {schema}.unset_queue(%(queue)s)
