-- tally_lines: how many jobs ended how, minute by minute.
--
-- Params   minutes: how many, up to the one that runs. queues: of which queues; null: of all of them together.
-- Returns  queue ('' for all together), event, minute (0 is the oldest, minutes - 1 the one that runs), count.
-- Locks    none.
-- Index    tally_pkey: one range of minutes.
select case when %(queues)s::text[] is null then '' else t.queue end as queue, t.event,
       (%(minutes)s::integer - 1
        - extract(epoch from date_trunc('minute', clock_timestamp()) - t.minute)::integer / 60) as minute,
       sum(t.n)::bigint as n
  from {schema}.tally t
 where t.minute > date_trunc('minute', clock_timestamp()) - make_interval(mins => %(minutes)s::integer)
   and t.minute <= date_trunc('minute', clock_timestamp())
   and (%(queues)s::text[] is null or t.queue = any (%(queues)s::text[]))
 group by 1, 2, 3
