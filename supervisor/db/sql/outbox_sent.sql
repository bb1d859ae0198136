-- outbox_sent: published events that are kept, newest place first.
select s.id, s.topic, s.key, s.event_id, s.created_at, s.attempts, s.sent_at
  from {schema}.outbox_sent s
 where (%(topic)s::text is null or s.topic = %(topic)s)
 order by s.id desc limit %(limit)s
