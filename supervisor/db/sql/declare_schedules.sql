-- declare_schedules: say which kinds run here and which cron entries they have. See functions/085_cron.sql.
select {schema}.declare_schedules(%(kinds)s::text[], %(entries)s::jsonb, %(ttl_s)s)
