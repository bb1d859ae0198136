-- doctor_options: the storage parameters of the queue's tables; partitions by day are not among them.
--
-- Returns  table, parameters as name=value.
-- Locks    none.
select c.relname::text, coalesce(c.reloptions, '{}')
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where n.nspname = {schema_literal} and c.relkind in ('r', 'p') and not c.relname ~ '^history_[0-9]{8}$'
 order by 1
