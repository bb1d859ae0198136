-- health_horizon: who keeps dead rows of this database from being vacuumed away.
--
-- Returns  per holder, the one that holds most back first: what it is (session, standby, prepared, slot),
--          its name (application, prepared transaction's or slot's name), pid, user, state, when its
--          transaction or statement began, for how many seconds it has held (null: not known, as with
--          slots, or with sessions of others where the role may not see them), and how many transactions
--          have begun since.
-- Params   limit: the most holders.
-- Locks    none. Never a query's text, which may hold data.
-- Rights   any role sees that a session holds back; whose and since when, only with pg_read_all_stats.
select h.kind, h.name, h.pid, h.username, h.state, h.began, extract(epoch from clock_timestamp() - h.began)::float8, h.xids
  from (
    -- Vacuums and logical decoding do not hold back others; the session that asks has begun just now.
    select case when a.backend_type = 'walsender' then 'standby' else 'session' end as kind,
           a.application_name as name, a.pid, a.usename::text as username, a.state,
           coalesce(a.xact_start, a.query_start) as began,
           greatest(pg_catalog.age(a.backend_xmin), pg_catalog.age(a.backend_xid)) as xids
      from pg_catalog.pg_stat_activity a
     where (a.backend_xmin is not null or a.backend_xid is not null)
       and (a.datname = pg_catalog.current_database() or a.datname is null)
       and a.pid <> pg_catalog.pg_backend_pid()
       and a.backend_type in ('client backend', 'walsender', 'background worker', 'parallel worker')
       and not exists (select from pg_catalog.pg_stat_progress_vacuum v where v.pid = a.pid)
    union all
    select 'prepared', p.gid, null, p.owner::text, 'prepared', p.prepared, pg_catalog.age(p.transaction)
      from pg_catalog.pg_prepared_xacts p
     where p.database = pg_catalog.current_database()
    union all
    select 'slot', s.slot_name::text, s.active_pid, null, case when s.active then 'active' else 'inactive' end,
           null, pg_catalog.age(s.xmin)
      from pg_catalog.pg_replication_slots s
     where s.xmin is not null
  ) h
 order by h.xids desc nulls last, h.began nulls last
 limit %(limit)s
