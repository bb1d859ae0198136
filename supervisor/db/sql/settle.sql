-- settle: end runs other than by success, or release them. See functions/060_settle.sql.
--
-- Params   session; ids, claims, events, errors, reasons, delays_s, bases_s, caps_s: of one length;
--          keep; limit_s.
-- Returns  id, new status, seconds until due. A missing id had lost its lease.
select id, status, due_in_s
  from {schema}.settle(%(session)s, %(ids)s::bigint[], %(claims)s::bigint[], %(events)s::text[], %(errors)s::text[],
                       %(reasons)s::text[], %(delays_s)s::float8[], %(bases_s)s::float8[], %(caps_s)s::float8[],
                       %(keep)s, %(limit_s)s)
