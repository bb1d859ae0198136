-- say_progress: keep what running jobs say of themselves. See functions/055_results.sql.
select {schema}.say_progress(%(session)s, %(ids)s::bigint[], %(claims)s::bigint[], %(shares)s::real[], %(notes)s::text[])
