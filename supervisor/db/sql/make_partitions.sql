-- make_partitions: history's partitions for the days ahead. See functions/090_history.sql.
select {schema}.make_partitions(%(days_ahead)s)
