-- overtaken: of runs whose results may or may not have been stored, those that surely were not.
--
-- Params   ids, claims: jobs and the fencing tokens of those runs; gone: whether the stored result
--          would have removed the job from the table.
-- Returns  the ids whose job is still there though it should be gone, or that were charged a crash for
--          this very run: its lease had passed.
-- Index    job_pkey, dead_letter_pkey, history_id.
with held as (
    select h.id, h.gone, jsonb_build_array(jsonb_build_object('event', 'crashed', 'claims', h.claims)) as charge
      from unnest(%(ids)s::bigint[], %(claims)s::bigint[], %(gone)s::boolean[]) as h (id, claims, gone))
select held.id
  from held
 where exists (select from {schema}.job j where j.id = held.id and (held.gone or j.errors @> held.charge))
    or exists (select from {schema}.dead_letter d where d.id = held.id and d.errors @> held.charge)
    or exists (select from {schema}.history h where h.id = held.id and h.errors @> held.charge)
