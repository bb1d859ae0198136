-- health_slots: the server's replication slots and how much write-ahead log each keeps.
--
-- Returns  per slot: name, type (physical, logical), its database (null: physical), whether somebody reads it,
--          bytes of log it keeps (null: none reserved, or this server is in recovery), what the log's state is
--          (reserved, extended, unreserved, lost), transactions since its xmin (null: it holds back none).
-- Locks    none.
select s.slot_name::text, s.slot_type, s.database::text, s.active,
       case when not pg_catalog.pg_is_in_recovery()
            then pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), s.restart_lsn)::bigint end,
       s.wal_status, pg_catalog.age(s.xmin)
  from pg_catalog.pg_replication_slots s
 order by s.slot_name
