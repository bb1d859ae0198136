-- replay_events: put parked events back. See functions/110_relay.sql.
select {schema}.replay_events(%(ids)s::bigint[])
