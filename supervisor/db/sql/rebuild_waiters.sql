-- rebuild_waiters: who waits for the rebuild of a table's index: a migration, a vacuum by hand or for wrap-around.
--
-- Params   table_name; pid: the rebuild's.
-- Returns  the first one's name and pid; no row: nobody waits.
-- Locks    none.
select case when a.backend_type = 'autovacuum worker' then a.backend_type else a.application_name end, l.pid
  from pg_catalog.pg_locks l
  join pg_catalog.pg_class c on c.oid = l.relation and c.relname = %(table_name)s
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace and n.nspname = {schema_literal}
  left join pg_catalog.pg_stat_activity a on a.pid = l.pid
 where l.locktype = 'relation' and not l.granted and l.pid <> %(pid)s
   and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database())
   and %(pid)s = any (pg_catalog.pg_blocking_pids(l.pid))
 limit 1
