-- pause_schedule: an operator's order. See functions/085_cron.sql.
select {schema}.pause_schedule(%(name)s, by => %(by)s)
