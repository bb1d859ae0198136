-- health_tables: size, dead rows, last vacuum and an estimate of bloat of each of the queue's tables.
--
-- Returns  per table (history's partitions together, as "history"): name, rows, dead rows (both as the
--          statistics have them), heap bytes, bytes in all (indexes and TOAST included), bytes of the heap
--          beyond what its rows need at its fill factor (null: not known, it was never analyzed; for the
--          history never asked, since it goes by whole partitions), last vacuum and last analyze, by hand or
--          automatic (of the history the oldest that is known), age of the oldest transaction id.
-- Locks    none but those that asking for a size takes (access share, for a moment).
-- Reads    statistics and catalogs only, never a table: it costs the same with ten million rows.
with found as (
    select c.oid, c.reltuples, c.relfrozenxid, i.inhparent is not null as partition,
           case when i.inhparent is not null then 'history' else c.relname end as name,
           coalesce((select o.option_value::integer from pg_catalog.pg_options_to_table(c.reloptions) o
                      where o.option_name = 'fillfactor'), 100) as fillfactor,
           pg_catalog.pg_relation_size(c.oid) as heap_bytes,
           pg_catalog.pg_total_relation_size(c.oid) as total_bytes
      from pg_catalog.pg_class c
      join pg_catalog.pg_namespace n on n.oid = c.relnamespace
      left join pg_catalog.pg_inherits i on i.inhrelid = c.oid
     where n.nspname = {schema_literal} and c.relkind = 'r'
), counted as (
    select f.*, s.n_dead_tup as dead,
           greatest(s.last_vacuum, s.last_autovacuum) as vacuumed, greatest(s.last_analyze, s.last_autoanalyze) as analyzed,
           -- After a crash the statistics begin at nothing: then the last vacuum's or analyze's count is nearer.
           case when s.n_live_tup > 0 or greatest(s.last_vacuum, s.last_autovacuum, s.last_analyze, s.last_autoanalyze) is not null
                then s.n_live_tup else greatest(f.reltuples, 0) end::float8 as rows
      from found f
      left join pg_catalog.pg_stat_all_tables s on s.relid = f.oid
), widths as (
    select c.oid, count(p.attname) as known, coalesce(sum((1 - p.null_frac) * p.avg_width), 0) as width
      from counted c
      left join pg_catalog.pg_stats p on p.schemaname = {schema_literal} and p.tablename = c.name and not c.partition
     group by c.oid
)
select c.name, sum(c.rows)::bigint, sum(c.dead)::bigint, sum(c.heap_bytes)::bigint, sum(c.total_bytes)::bigint,
       sum(case when w.known > 0 and not c.partition then
               -- A row's header, its null bitmap and padding, and its line pointer; a page's header.
               greatest(0, c.heap_bytes - ceil(c.rows * (24 + 8 + w.width + 4 + 4)
                   / ((b.size - 24) * c.fillfactor / 100.0)) * b.size) end)::bigint,
       min(c.vacuumed), min(c.analyzed), max(pg_catalog.age(c.relfrozenxid))
  from counted c
  join widths w on w.oid = c.oid
 cross join (select pg_catalog.current_setting('block_size')::float8 as size) b
 group by c.name
 order by c.name
