-- health_server: what the server has of everything else that matters to a queue.
--
-- Returns  one row: the share of the notification queue that is in use (0 to 1), connections in use, the
--          most there may be, whether autovacuum is on, the oldest of this database's transaction ids and
--          the age at which it is frozen in any case, seconds since 1970 by the server's clock.
-- Locks    none.
select pg_catalog.pg_notification_queue_usage()::float8,
       (select sum(d.numbackends) from pg_catalog.pg_stat_database d)::bigint,
       pg_catalog.current_setting('max_connections')::integer,
       pg_catalog.current_setting('autovacuum')::boolean,
       (select pg_catalog.age(d.datfrozenxid) from pg_catalog.pg_database d where d.datname = pg_catalog.current_database()),
       pg_catalog.current_setting('autovacuum_freeze_max_age')::bigint,
       extract(epoch from clock_timestamp())::float8
