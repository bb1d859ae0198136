-- add_lanes: register lanes that a notification named. Known ones are left alone.
insert into {schema}.lane (queue, priority)
select n.queue, n.priority from unnest(%(queues)s::text[], %(priorities)s::smallint[]) as n (queue, priority)
 order by 1, 2
    on conflict do nothing
