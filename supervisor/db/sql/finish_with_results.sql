-- finish_with_results: acknowledge jobs and keep what they returned. See functions/055_results.sql.
--
-- Params   session; ids, claims, took, results, for_s: of one length; keep.
-- Returns  the ids acknowledged. A missing one had lost its lease.
select * from {schema}.finish_with_results(%(session)s, %(ids)s::bigint[], %(claims)s::bigint[], %(took)s::float8[], %(keep)s,
                                           %(results)s::text[], %(for_s)s::float8[])
