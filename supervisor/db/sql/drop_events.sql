-- drop_events: forget parked events. See functions/110_relay.sql.
select {schema}.drop_events(%(ids)s::bigint[])
