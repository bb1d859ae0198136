-- renew: prolong the sessions of living workers. See functions/040_session.sql.
--
-- Returns  the ids renewed; a missing one is closed for good.
select {schema}.renew(%(ids)s::bigint[], %(lease_s)s)
