-- outbox_relays: the living relays, and how many parts each leads.
select r.id, r.name, r.host, r.pid, r.version, r.broker, r.state, r.started_at,
       (select count(*) from {schema}.outbox_part p where p.holder = r.id) as parts,
       r.detail ->> 'broker_error' as broker_error,
       (r.detail ->> 'published')::bigint as published, (r.detail ->> 'refused')::bigint as refused,
       (r.detail ->> 'parked')::bigint as parked
  from {schema}.relay r
 where r.expires_at > clock_timestamp()
 order by r.started_at, r.id
