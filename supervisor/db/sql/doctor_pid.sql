-- doctor_pid: the session that answers. A pooler tells its clients another one.
select pg_catalog.pg_backend_pid()
