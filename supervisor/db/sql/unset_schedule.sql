-- unset_schedule: an operator's order. See functions/085_cron.sql.
select {schema}.unset_schedule(%(name)s)
