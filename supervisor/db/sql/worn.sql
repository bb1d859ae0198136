-- worn: tables of the schema in which more rows have died than they should hold, and which nobody vacuums now.
--
-- Params   dead_rows, share: at least so many, and this share of the live ones besides.
-- Returns  the table's name, its dead and live rows as the server counts them, whether this role may vacuum it.
-- Locks    none. Partitions are not among them: they are dropped whole.
select c.relname::text, pg_catalog.pg_stat_get_dead_tuples(c.oid), pg_catalog.pg_stat_get_live_tuples(c.oid),
       pg_catalog.pg_has_role(c.relowner, 'USAGE')
       or pg_catalog.pg_has_role((select d.datdba from pg_catalog.pg_database d
                                   where d.datname = pg_catalog.current_database()), 'USAGE')
       or case when pg_catalog.current_setting('server_version_num')::integer >= 170000
               then pg_catalog.has_table_privilege(c.oid, 'MAINTAIN') else false end
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where n.nspname = {schema_literal} and c.relkind = 'r' and not c.relispartition
   and pg_catalog.pg_stat_get_dead_tuples(c.oid) >= %(dead_rows)s + %(share)s * pg_catalog.pg_stat_get_live_tuples(c.oid)
   and not exists (select from pg_catalog.pg_stat_progress_vacuum p where p.relid = c.oid)
 order by c.relname
