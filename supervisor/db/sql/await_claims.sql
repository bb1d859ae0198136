-- await_claims: wait until every claim that is under way has ended. See functions/045_queue.sql.
select {schema}.await_claims()
