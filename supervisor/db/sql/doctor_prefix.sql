-- doctor_prefix: how the names of the roles begin that were set up; null when none were.
--
-- Returns  one row. Written so that a table of before this column is no error.
select (select pg_catalog.to_jsonb(m) ->> 'roles' from {schema}.migration m
         where pg_catalog.to_jsonb(m) ->> 'roles' is not null order by m.version desc limit 1)
