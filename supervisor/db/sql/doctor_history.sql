-- doctor_history: the history's days ahead, and what lies in none of them.
--
-- Params   days: how many from today (UTC) on. limit: the most rows counted.
-- Returns  one row: the days from today on without a partition, rows in the default one (limit means "or more").
-- Locks    none.
select array(select d.day::date
               from pg_catalog.generate_series(0, %(days)s::integer - 1) as o (n)
              cross join lateral (select (pg_catalog.clock_timestamp() at time zone 'UTC')::date + o.n) as d (day)
              where not exists (
                    select from pg_catalog.pg_inherits i
                      join pg_catalog.pg_class p on p.oid = i.inhparent
                      join pg_catalog.pg_namespace n on n.oid = p.relnamespace
                      join pg_catalog.pg_class c on c.oid = i.inhrelid
                     where n.nspname = {schema_literal} and p.relname = 'history'
                       and c.relname = 'history_' || pg_catalog.to_char(d.day, 'YYYYMMDD'))
              order by d.day),
       (select count(*) from (select from {schema}.history_default limit %(limit)s) x)
