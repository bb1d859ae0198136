-- overtaken: of runs whose results may or may not have been stored, those that surely were not.
--
-- Params   ids, claims: jobs and the fencing tokens of those runs; gone: whether the stored result
--          would have removed the job from the table.
-- Returns  the ids whose job was claimed again since, or is still there though it should be gone.
-- Index    job_pkey, dead_letter_pkey, history_id.
select held.id
  from unnest(%(ids)s::bigint[], %(claims)s::bigint[], %(gone)s::boolean[]) as held (id, claims, gone)
 where exists (select from {schema}.job j where j.id = held.id and (held.gone or j.claims > held.claims))
    or exists (select from {schema}.dead_letter d where d.id = held.id and d.claims > held.claims)
    or exists (select from {schema}.history h where h.id = held.id and h.claims > held.claims)
