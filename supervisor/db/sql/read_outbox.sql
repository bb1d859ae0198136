-- read_outbox: what is pending and not read before. See functions/110_relay.sql.
select snapshot, late, id, part, topic, key, event_id, payload, headers, created_at, attempts, wait_s
  from {schema}.read_outbox(%(parts)s::smallint[], %(pos)s::bigint[], %(each)s, %(limit)s, %(open)s::text::xid8[],
                            %(since)s::text::xid8, %(most_late)s)
