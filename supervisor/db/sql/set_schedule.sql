-- set_schedule: an operator's order. See functions/085_cron.sql.
select {schema}.set_schedule(%(name)s, cron => %(cron)s, tz => %(tz)s, missed => %(missed)s, by => %(by)s)
