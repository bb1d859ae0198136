-- doctor_server: what the server is, and what this role's sessions begin with.
--
-- Returns  one row: version as a number, whether it is a standby, database, role, whether that is a superuser
--          and whether it sees other roles' sessions, most connections of the server, those kept for others
--          than this role, most of this role and of this database (null: no limit of their own), settings by
--          name as a session of this role begins with them (JSON, in the units of pg_settings), whether this
--          connection is encrypted, whether it comes over the network.
-- Locks    none.
select pg_catalog.current_setting('server_version_num')::integer,
       pg_catalog.pg_is_in_recovery(),
       pg_catalog.current_database()::text,
       current_user::text,
       r.rolsuper,
       r.rolsuper or pg_catalog.pg_has_role(current_user, 'pg_read_all_stats', 'usage'),
       pg_catalog.current_setting('max_connections')::integer,
       case when r.rolsuper then 0
            else pg_catalog.current_setting('superuser_reserved_connections')::integer
                 + coalesce(pg_catalog.current_setting('reserved_connections', true), '0')::integer end,
       nullif(r.rolconnlimit, -1),
       (select nullif(d.datconnlimit, -1) from pg_catalog.pg_database d where d.datname = pg_catalog.current_database()),
       (select pg_catalog.json_object_agg(s.name, s.reset_val) from pg_catalog.pg_settings s where s.name = any (%(names)s)),
       coalesce((select x.ssl from pg_catalog.pg_stat_ssl x where x.pid = pg_catalog.pg_backend_pid()), false),
       pg_catalog.inet_client_addr() is not null and pg_catalog.host(pg_catalog.inet_client_addr()) not in ('127.0.0.1', '::1')
  from pg_catalog.pg_roles r
 where r.rolname = current_user
