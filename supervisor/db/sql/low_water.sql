-- low_water: where each lane's unclaimed rows begin, and when its next job is due.
-- See functions/070_sweep.sql.
select ord, to_char(mark_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US"+00"'), mark_id, due, next_s, cost_ms
  from {schema}.low_water(%(queues)s::text[], %(priorities)s::smallint[], %(mark_at)s::timestamptz[], %(mark_id)s::bigint[],
                          make_interval(secs => %(lookback_s)s))
