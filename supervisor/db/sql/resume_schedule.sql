-- resume_schedule: an operator's order. See functions/085_cron.sql.
select {schema}.resume_schedule(%(name)s)
