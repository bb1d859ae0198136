-- sweep: repair what lies behind one lane's mark and free what closed sessions hold.
-- See functions/070_sweep.sql.
select id, what, status
  from {schema}.sweep(%(queue)s, %(priority)s::smallint, %(lo_at)s::timestamptz, %(lo_id)s, %(hi_at)s::timestamptz, %(hi_id)s,
                      %(front)s::timestamptz, %(base_s)s, %(cap_s)s, %(limit)s)
