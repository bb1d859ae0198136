-- rebuild_size: an index's bytes; no row: there is no such index.
--
-- Locks    none but what asking for a size takes.
select pg_catalog.pg_relation_size(c.oid)
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where n.nspname = {schema_literal} and c.relname = %(index_name)s and c.relkind = 'i'
