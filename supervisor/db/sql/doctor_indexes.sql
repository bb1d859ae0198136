-- doctor_indexes: which indexes there are, and which of them a claim would have to write.
--
-- Returns  table, index, whether it can be used, whether it depends on a column that a claim changes (which takes
--          the HOT update from every claim), whether somebody builds an index of its table now. Partitions' indexes are
--          left out.
-- Locks    none.
select t.relname::text, i.relname::text, x.indisvalid,
       t.relname = 'job' and exists (
           select from pg_catalog.pg_depend d
             join pg_catalog.pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
            where d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass and d.objid = i.oid and d.refobjid = t.oid
              and a.attname in ('lease', 'claims', 'attempts', 'started_at')),
       exists (
           select from pg_catalog.pg_stat_progress_create_index p
             join pg_catalog.pg_locks l on l.pid = p.pid and l.locktype = 'relation' and l.relation = t.oid
            where p.datname = pg_catalog.current_database() and l.mode = 'ShareUpdateExclusiveLock' and l.granted)
  from pg_catalog.pg_index x
  join pg_catalog.pg_class i on i.oid = x.indexrelid
  join pg_catalog.pg_class t on t.oid = x.indrelid
  join pg_catalog.pg_namespace n on n.oid = t.relnamespace
 where n.nspname = {schema_literal} and not exists (select from pg_catalog.pg_inherits h where h.inhrelid = t.oid)
 order by 1, 2
