-- resume_queue: claim from a paused queue again. See functions/045_queue.sql.
select {schema}.resume_queue(%(queue)s)
