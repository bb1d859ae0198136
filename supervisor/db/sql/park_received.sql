-- park_received: keep an event that no job can be made of. See functions/120_inbox.sql.
select {schema}.park_received(%s::text, %s::text, %s::text, %s::text, %s::bytea, %s::jsonb)
