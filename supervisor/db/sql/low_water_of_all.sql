-- low_water_of_all: low_water of every known lane from its published mark, and of others named besides from the
-- beginning, in one round trip. See functions/070_sweep.sql.
--
-- Params   queues, priorities: lanes that may not be in the table yet; lookback_s.
-- Returns  queue, priority, then as low_water; no row when there is no lane.
select asked.queues[water.ord], asked.priorities[water.ord],
       to_char(water.mark_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US"+00"'), water.mark_id, water.due, water.next_s, water.cost_ms
  from (select coalesce(array_agg(l.queue), '{}') as queues, coalesce(array_agg(l.priority), '{}') as priorities,
               coalesce(array_agg(l.mark_at), '{}') as mark_at, coalesce(array_agg(l.mark_id), '{}') as mark_id
          from (select k.queue, k.priority, k.mark_at, k.mark_id from {schema}.lane k
                union all
                select n.queue, n.priority, '1970-01-01 00:00:00+00', 0
                  from unnest(%(queues)s::text[], %(priorities)s::smallint[]) as n (queue, priority)
                 where not exists (select from {schema}.lane k where k.queue = n.queue and k.priority = n.priority)) l) asked
 cross join lateral {schema}.low_water(asked.queues, asked.priorities, asked.mark_at, asked.mark_id,
                                       make_interval(secs => %(lookback_s)s)) water
