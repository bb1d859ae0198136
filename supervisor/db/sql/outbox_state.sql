-- outbox_state: how the outbox is doing, in one row.
--
-- Returns  pending: events not published yet, counted up to %(most)s per part; oldest_s: age of the first of them,
--          null without any; retrying: those refused at least once, of the first of each part; parked,
--          parked_oldest_s; unled: parts that no living relay leads; relays: living ones; down: those whose broker
--          is away; inbox_parked.
-- Index    outbox_pkey: each part from its low on.
with pending as materialized (
    select p.part, o.created_at, o.attempts
      from {schema}.outbox_part p
     cross join lateral (
           select o.created_at, o.attempts from {schema}.outbox o
            where o.part = p.part and o.id >= p.low order by o.part, o.id limit %(most)s) o)
select (select count(*) from pending),
       (select extract(epoch from clock_timestamp() - min(created_at))::float8 from pending),
       (select count(*) from pending where attempts > 0),
       (select count(*) from (select 1 from {schema}.outbox_parked limit 10000) x),
       (select extract(epoch from clock_timestamp() - min(parked_at))::float8 from {schema}.outbox_parked),
       (select count(*) from {schema}.outbox_part p
         where not exists (select from {schema}.relay r where r.id = p.holder and r.expires_at > clock_timestamp())),
       (select count(*) from {schema}.relay r where r.expires_at > clock_timestamp()),
       (select count(*) from {schema}.relay r
         where r.expires_at > clock_timestamp() and r.detail ->> 'broker_error' is not null),
       (select count(*) from (select 1 from {schema}.inbox_parked limit 10000) x)
