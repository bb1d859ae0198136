-- matching: the next ids that a filter names. See functions/081_bulk.sql.
--
-- Returns  one row: the ids, and where to go on (null: nothing behind).
select ids, edge
  from {schema}.matching(%(living)s, %(statuses)s::text[], %(scheduled)s::boolean, %(kind)s::text, %(queue)s::text,
                         make_interval(secs => %(older_s)s::float8), %(key)s::text, %(after)s::bigint, %(upto)s::bigint,
                         %(limit)s::integer, %(window)s::integer)
