-- plan_schedule: say when an entry is due next, or why not. See functions/085_cron.sql.
select {schema}.plan_schedule(%(name)s, %(revision)s, %(next_at)s, %(problem)s)
