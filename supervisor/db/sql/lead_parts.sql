-- lead_parts: a relay lives, and takes its share of the parts. See functions/110_relay.sql.
select part, token, low, share
  from {schema}.lead_parts(%(relay)s, %(name)s, %(host)s, %(pid)s, %(version)s, %(broker)s, %(state)s, %(waiting)s,
                           %(detail)s::jsonb, %(lease_s)s)
