-- pause_queue: claim nothing more from a queue. See functions/045_queue.sql.
select {schema}.pause_queue(%(queue)s, %(by)s)
