-- raise_low: where a new leader of a part begins to read. See functions/110_relay.sql.
select {schema}.raise_low(%(relay)s, %(parts)s::smallint[], %(tokens)s::bigint[], %(lows)s::bigint[])
