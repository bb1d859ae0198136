-- doctor_rights: what this role would need and does not have.
--
-- Params   tables, rights: text[] of one length, a right to a table per position. functions: text[].
-- Returns  per lack: what it is (schema, table, function), its name (a function with its parameters), the right
--          (usage, select, ..., execute).
-- Locks    none. Objects that are not there are not lacked: other checks miss them.
select 'schema', n.nspname::text, 'usage'
  from pg_catalog.pg_namespace n
 where n.nspname = {schema_literal} and not pg_catalog.has_schema_privilege(n.oid, 'usage')
union all
select 'table', c.relname::text, w.wanted
  from unnest(%(tables)s::text[], %(rights)s::text[]) as w (name, wanted)
  join pg_catalog.pg_class c on c.relname = w.name
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace and n.nspname = {schema_literal}
 where not pg_catalog.has_table_privilege(c.oid, w.wanted)
union all
select 'function', p.oid::pg_catalog.regprocedure::text, 'execute'
  from pg_catalog.pg_proc p
  join pg_catalog.pg_namespace n on n.oid = p.pronamespace and n.nspname = {schema_literal}
 where p.proname = any (%(functions)s::text[])
   and not pg_catalog.has_function_privilege(p.oid, 'execute')
 order by 1, 2, 3
