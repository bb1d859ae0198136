-- reap: close the sessions that nobody renewed in time. See functions/040_session.sql.
select id, name from {schema}.reap()
