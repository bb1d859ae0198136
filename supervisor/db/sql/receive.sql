-- receive: a job for each event that this consumer has not had before. See functions/120_inbox.sql.
select {schema}.receive(%s::text, %s::text[], %s::jsonb)
