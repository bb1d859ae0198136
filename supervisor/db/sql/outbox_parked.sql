-- outbox_parked: parked events, by their place.
select p.id, p.topic, p.key, p.event_id, p.created_at, p.attempts, p.parked_at, p.last_error
  from {schema}.outbox_parked p
 where p.id > %(after)s and (%(topic)s::text is null or p.topic = %(topic)s)
 order by p.id limit %(limit)s
