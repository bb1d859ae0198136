-- forget_awaited: wait no more for these. See functions/055_results.sql.
select {schema}.forget_awaited(%(waiter)s, %(ids)s::bigint[])
