-- sweep_lanes: repair what lies behind lanes' marks and free what closed sessions hold.
-- See functions/070_sweep.sql.
--
-- Returns  lane (position from 1), id, what was done, new status, for each job touched.
select lane, id, what, status
  from {schema}.sweep_lanes(%(queues)s::text[], %(priorities)s::smallint[], %(lo_at)s::timestamptz[], %(lo_id)s::bigint[],
                            %(hi_at)s::timestamptz[], %(hi_id)s::bigint[], %(fronts)s::timestamptz[],
                            %(base_s)s, %(cap_s)s, %(limit)s)
