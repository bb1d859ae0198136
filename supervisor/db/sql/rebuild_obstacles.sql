-- rebuild_obstacles: what a concurrent rebuild of a table's index would wait for.
--
-- Params   table_name.
-- Returns  what it is (lock: one that excludes it, held or asked for; build: another concurrent build, each waits for the
--          other's snapshot; prepared: a prepared transaction that has locked the table; transaction: one that has a
--          snapshot of this database or has locked the table), a name for the same one at the next look, who it is, its
--          pid, seconds since it began (null: not known, as of sessions of others where the role may not see them).
-- Locks    none. Vacuums of other tables are not waited for.
-- Rights   any role sees who has locked what; since when, only with pg_read_all_stats.
with here as (
    select c.oid as table_oid, d.oid as database_oid
      from pg_catalog.pg_class c
      join pg_catalog.pg_namespace n on n.oid = c.relnamespace
      join pg_catalog.pg_database d on d.datname = pg_catalog.current_database()
     where n.nspname = {schema_literal} and c.relname = %(table_name)s
), locks as (
    select l.* from pg_catalog.pg_locks l, here h
     where l.locktype = 'relation' and l.database = h.database_oid and l.relation = h.table_oid
       and l.pid is distinct from pg_catalog.pg_backend_pid()
)
select 'lock', l.virtualtransaction,
       case when a.backend_type = 'autovacuum worker' then a.backend_type else a.application_name end, l.pid, null::float8
  from locks l
  left join pg_catalog.pg_stat_activity a on a.pid = l.pid
 where l.mode not in ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
union all
select 'build', p.pid::text, a.application_name, p.pid, null
  from pg_catalog.pg_stat_progress_create_index p
  join pg_catalog.pg_stat_activity a on a.pid = p.pid
 where p.datname = pg_catalog.current_database() and p.pid <> pg_catalog.pg_backend_pid()
union all
select 'prepared', l.virtualtransaction, 'a prepared transaction', null, null
  from locks l
 where l.pid is null
union all
select 'transaction', v.virtualtransaction, a.application_name, a.pid,
       extract(epoch from clock_timestamp() - coalesce(a.xact_start, a.query_start))::float8
  from pg_catalog.pg_stat_activity a
  join pg_catalog.pg_locks v on v.pid = a.pid and v.locktype = 'virtualxid' and v.granted and v.mode = 'ExclusiveLock'
 where a.datname = pg_catalog.current_database() and a.pid <> pg_catalog.pg_backend_pid()
   and (exists (select from locks l where l.pid = a.pid)
        or a.backend_xmin is not null and not exists (select from pg_catalog.pg_stat_progress_vacuum w where w.pid = a.pid))
