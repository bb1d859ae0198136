-- open_session: start a session. See functions/040_session.sql.
select {schema}.open_session(%(session)s, %(parent)s, %(name)s, %(lease_s)s)
