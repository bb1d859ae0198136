-- cancels_of: which of these runs were cancelled. See functions/080_operate.sql.
select id, claims, kill_in_s from {schema}.cancels_of(%(ids)s::bigint[], %(claims)s::bigint[])
