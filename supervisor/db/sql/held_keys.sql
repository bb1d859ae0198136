-- held_keys: the keys of these parts that a parked event holds back. See functions/110_relay.sql.
select part, key from {schema}.held_keys(%(parts)s::smallint[])
