-- confirm_events: the broker has these events. See functions/110_relay.sql.
--
-- Returns  how many left the outbox.
select count(*)
  from {schema}.confirm_events(%(relay)s, %(parts)s::smallint[], %(tokens)s::bigint[], %(ids)s::bigint[], %(keep)s,
                               %(keep_payload)s)
