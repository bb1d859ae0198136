-- prune: remove rows past their age from the helper tables, one batch. See functions/090_history.sql.
select {schema}.prune(make_interval(secs => %(keep_history_s)s), make_interval(secs => %(keep_dead_s)s), %(limit)s)
