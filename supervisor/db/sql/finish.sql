-- finish: acknowledge one job inside its handler's transaction. See functions/050_work.sql.
--
-- Returns  whether the acknowledgement counted; false when the lease was lost.
-- Locks    the job's row, until the handler's transaction ends.
select (payload::jsonb ->> 'acked')::integer = 1
  from {schema}.work(%(session)s, %(ids)s::bigint[], %(claims)s::bigint[], %(took)s::float8[], %(keep)s,
                     '{}', '{}', '{}', '{}', 0, '0', 0, null)
 where lane is null
