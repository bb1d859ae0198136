-- relay_gone: a relay has stopped. See functions/110_relay.sql.
select {schema}.relay_gone(%(relay)s)
