-- refuse_events: the broker will not have these events. See functions/110_relay.sql.
select id, parked, attempts, wait_s
  from {schema}.refuse_events(%(relay)s, %(parts)s::smallint[], %(tokens)s::bigint[], %(ids)s::bigint[],
                              %(errors)s::text[], %(max_attempts)s, %(base_s)s, %(cap_s)s)
