-- health_indexes: size and an estimate of bloat of each index of the queue's tables, the history's excepted.
--
-- Returns  per index: table, index, bytes, bytes beyond what its rows need (null: not known), whether it can be used
--          (false: a concurrent build failed and left it behind, or still works on it), bytes that a rebuild would bring
--          now: dead rows that were not vacuumed have entries too, and where the statistics were lost (a crash) those
--          are believed that the last vacuum has counted (null: not known).
-- Locks    none but those that asking for a size takes (access share, for a moment).
-- Reads    statistics and catalogs only. Equal keys share an entry, so the estimate errs towards no bloat.
with found as (
    select t.oid as table_oid, t.relname as table_name, i.oid, i.relname as name, x.indisvalid as valid,
           x.indpred is not null as partial, i.reltuples, x.indkey, x.indnatts,
           pg_catalog.pg_relation_size(i.oid) as bytes,
           coalesce((select o.option_value::integer from pg_catalog.pg_options_to_table(i.reloptions) o
                      where o.option_name = 'fillfactor'), 90) as fillfactor
      from pg_catalog.pg_index x
      join pg_catalog.pg_class i on i.oid = x.indexrelid
      join pg_catalog.pg_class t on t.oid = x.indrelid
      join pg_catalog.pg_namespace n on n.oid = t.relnamespace
      join pg_catalog.pg_am a on a.oid = i.relam
     where n.nspname = {schema_literal} and t.relkind = 'r' and i.relkind = 'i' and a.amname = 'btree'
       and not exists (select from pg_catalog.pg_inherits h where h.inhrelid = t.oid)
), keys as (
    -- A column of fixed length needs no statistics, nor does an expression: ours are numbers.
    select f.oid, bool_and(k.attnum = 0 or a.attlen > 0 or p.avg_width is not null) as known,
           sum(case when k.attnum = 0 then 8 when a.attlen > 0 then a.attlen else coalesce(p.avg_width, 0) end) as width
      from found f
     cross join lateral pg_catalog.unnest(f.indkey::smallint[]) as k (attnum)
      left join pg_catalog.pg_attribute a on a.attrelid = f.table_oid and a.attnum = k.attnum and k.attnum > 0
      left join pg_catalog.pg_stats p on p.schemaname = {schema_literal} and p.tablename = f.table_name and p.attname = a.attname
     group by f.oid
)
select f.table_name, f.name, f.bytes, case when n.live is not null then greatest(0, f.bytes - n.live) end::bigint, f.valid,
       case when n.entered is not null and f.reltuples >= 0 then greatest(0, f.bytes - n.entered) end::bigint
  from found f
  join keys k on k.oid = f.oid
  left join pg_catalog.pg_stat_all_tables s on s.relid = f.table_oid
 cross join (select pg_catalog.current_setting('block_size')::float8 as size) b
 cross join lateral (
       select case when f.partial then f.reltuples else coalesce(s.n_live_tup, 0) end::float8 as live,
              case when f.partial then f.reltuples + coalesce(s.n_dead_tup + s.n_ins_since_vacuum, 0)
                   else greatest(f.reltuples, coalesce(s.n_live_tup + s.n_dead_tup, 0)) end::float8 as entered) e
 cross join lateral (
       -- An entry's header, its padding and its line pointer; a page's header and tail; one page of the index itself.
       select (1 + ceil(e.live * c.bytes)) * b.size as live, (1 + ceil(e.entered * c.bytes)) * b.size as entered
         from (select case when k.known and (not f.partial or f.reltuples >= 0)
                           then (8 + k.width + 4 + 4) / ((b.size - 40) * f.fillfactor / 100.0) end as bytes) c) n
 order by f.table_name, f.name
