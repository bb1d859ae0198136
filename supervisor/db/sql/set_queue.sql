-- set_queue: set limits of a queue. See functions/045_queue.sql.
select {schema}.set_queue(%(queue)s, max_running => %(max_running)s)
