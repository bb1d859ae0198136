-- work: acknowledge finished jobs and claim the next, in one round trip. See functions/050_work.sql.
--
-- Params   session; ids, claims, took: array literals of one length; keep: 0, 1, 2; queues,
--          priorities, mark_at, mark_id: array literals of one length, best lane first; limit;
--          lookback_s; hands: most jobs of limited queues; tids: array literal, null: none is known.
-- Returns  claimed jobs, then one control row (lane is null). No rows is not possible.
select lane, id, claims, kind, payload, headers, attempts, max_attempts, crashes, suspect, timeout_s,
       date_part('epoch', created_at), date_part('epoch', run_at), tid::text
  from {schema}.work(%(session)s, %(ids)s::bigint[], %(claims)s::bigint[], %(took)s::float8[], %(keep)s,
                     %(queues)s::text[], %(priorities)s::smallint[], %(mark_at)s::timestamptz[], %(mark_id)s::bigint[],
                     %(limit)s, make_interval(secs => %(lookback_s)s), %(hands)s,
                     %(tids)s::tid[])
