-- rebuild_watch: have the server look, each second of a statement, whether this side is still there.
--
-- Sets     for the session: who hangs up, or is killed, ends the statement. Refused (22023) by servers on systems that
--          cannot tell; there it goes on to its time limit.
select pg_catalog.set_config('client_connection_check_interval', '1s', false)
