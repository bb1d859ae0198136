-- running_of: what runs of a queue, a part of its rows at a time. See functions/045_queue.sql.
select ids, tokens, priority, at, id from {schema}.running_of(%(queue)s, %(priority)s, %(at)s, %(id)s, %(most)s)
