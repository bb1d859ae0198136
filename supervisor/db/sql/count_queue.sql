-- count_queue: these runs of before count for a queue's limit. See functions/045_queue.sql.
select {schema}.count_queue(%(queue)s, %(limited_at)s, %(ids)s::bigint[], %(tokens)s::bigint[])
