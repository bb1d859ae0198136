-- close_session: end a session whose jobs are all accounted for. See functions/040_session.sql.
select {schema}.close_session(%(session)s)
