-- give_parts: lead these parts no longer. See functions/110_relay.sql.
select {schema}.give_parts(%(relay)s, %(parts)s::smallint[])
