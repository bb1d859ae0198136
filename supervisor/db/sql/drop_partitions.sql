-- drop_partitions: drop history's partitions past their age. See functions/090_history.sql.
select {schema}.drop_partitions(make_interval(secs => %(keep_s)s))
