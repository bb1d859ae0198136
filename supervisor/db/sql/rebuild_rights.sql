-- rebuild_rights: whether this role on this server may rebuild an index of a table, and drop what a rebuild left.
--
-- Params   table_name.
-- Returns  the server's version as a number, whether it is in recovery, the role, whether it may rebuild, whether it may
--          drop; no row: there is no such table.
-- Locks    none.
select pg_catalog.current_setting('server_version_num')::integer, pg_catalog.pg_is_in_recovery(), current_user::text,
       pg_catalog.pg_has_role(c.relowner, 'USAGE')
       or case when pg_catalog.current_setting('server_version_num')::integer >= 170000
               then pg_catalog.has_table_privilege(c.oid, 'MAINTAIN') else false end,
       pg_catalog.pg_has_role(c.relowner, 'USAGE')
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where n.nspname = {schema_literal} and c.relname = %(table_name)s
