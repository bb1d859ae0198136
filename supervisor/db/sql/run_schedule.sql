-- run_schedule: an operator's order. See functions/085_cron.sql.
select r.id, r.created from {schema}.run_schedule(%(name)s, by => %(by)s) r
