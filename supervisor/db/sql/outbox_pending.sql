-- outbox_pending: the first events that are not published yet, oldest first.
--
-- Index    outbox_pkey: each part from its low on.
select o.id, o.topic, o.key, o.event_id, o.created_at, o.attempts, o.retry_at, o.last_error
  from {schema}.outbox_part p
 cross join lateral (
       select o.* from {schema}.outbox o
        where o.part = p.part and o.id >= greatest(p.low, %(after)s + 1)
          and (%(topic)s::text is null or o.topic = %(topic)s)
        order by o.part, o.id limit %(limit)s) o
 order by o.id limit %(limit)s
