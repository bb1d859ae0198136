-- await_results: what has become of jobs, and a registration for those that live. See functions/055_results.sql.
select id, status, busy, value, kept_until, reason, last_error, attempts
  from {schema}.await_results(%(waiter)s, %(ids)s::bigint[], %(for_s)s)
