-- fire_schedule: add the jobs of due ticks and move on, once in the cluster. See functions/085_cron.sql.
select f.job, f.late_s
  from {schema}.fire_schedule(%(name)s, %(revision)s, %(at)s, %(ticks)s::timestamptz[], %(skipped)s, %(following)s) f
