-- put_back: pass by due jobs of unknown kinds, many at a time. See functions/065_put_back.sql.
--
-- Params   queues, priorities, mark_at, mark_id: lanes and where to start in each; known: kinds; due_s; limit_s; limit.
-- Returns  how many were put back, and whether there may be more.
select moved, more
  from {schema}.put_back(%(queues)s::text[], %(priorities)s::smallint[], %(mark_at)s::timestamptz[], %(mark_id)s::bigint[],
                         %(known)s::text[], %(due_s)s, %(limit_s)s, %(limit)s)
