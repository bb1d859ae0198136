-- doctor_prefix: how the names of the roles begin that were let into the schema; null when none were.
--
-- Returns  one row. From the catalog and not from the table that knows it: who asks may not be let in itself.
select (select pg_catalog.left(r.rolname, -7)
          from pg_catalog.pg_namespace n
         cross join lateral pg_catalog.aclexplode(n.nspacl) a
          join pg_catalog.pg_roles r on r.oid = a.grantee
         where n.nspname = {schema_literal} and r.rolname ~ '_worker$'
           and exists (select from pg_catalog.pg_roles o where o.rolname = pg_catalog.left(r.rolname, -7) || '_producer')
         order by 1 limit 1)
