-- move_session: go on under a new session after a lost answer. See functions/040_session.sql.
--
-- Returns  the ids moved; a missing one lost its lease.
select {schema}.move_session(%(old)s, %(new)s, %(parent)s, %(name)s, %(lease_s)s, %(ids)s::bigint[], %(claims)s::bigint[])
