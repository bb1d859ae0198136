-- job_gate: what one job with keys or parents waits for, and what it holds.
--
-- Params   id. most: where counting stops. some: the most parents, children and holders named.
-- Returns  no row for a job without gates that nobody waits for; else one: gate (parents, order, concurrency, rate; null:
--          it waits for none), holds (dead, and keeps its ordering_key), keys with their limits (period in seconds), ahead:
--          who goes before it at that gate, behind: who waits for its turn in the ordering_key, taken: places of the
--          concurrency_key, holders: who has what it waits for, parents: [id, status, failed] of those that it waits for,
--          parents_all: how many, children: ids that wait for it.
-- Locks    none.
-- Index    gated_pkey, gated_*_held, gated_*_waiting, job_after_pkey, job_after_child; job_pkey and dead_letter_pkey once
--          per parent named.
with mine as materialized (
    select g.* from {schema}.gated g where g.job_id = %(id)s::bigint),
children as materialized (
    select l.child from {schema}.job_after l where l.parent = %(id)s::bigint order by l.child limit %(some)s)
select (array['parents', 'order', 'concurrency', 'rate'])[g.gate] as gate,
       coalesce(g.gate = 9 and g.ordering_hold and g.ordering_key is not null, false) as holds,
       g.ordering_key, g.concurrency_key, g.concurrency_limit, g.rate_key, g.rate_limit,
       extract(epoch from g.rate_period)::float8 as rate_period_s,
       case g.gate
           when 2 then (select count(*) from (
               select from {schema}.gated w where w.gate = 2 and w.ordering_key = g.ordering_key and w.job_id < g.job_id
                order by w.job_id limit %(most)s) x)
           when 3 then (select count(*) from (
               select from {schema}.gated w where w.gate = 3 and w.concurrency_key = g.concurrency_key
                  and (w.due_at, w.job_id) < (g.due_at, g.job_id) order by w.due_at, w.job_id limit %(most)s) x)
           when 4 then (select count(*) from (
               select from {schema}.gated w where w.gate = 4 and w.rate_key = g.rate_key
                  and (w.due_at, w.job_id) < (g.due_at, g.job_id) order by w.due_at, w.job_id limit %(most)s) x)
       end as ahead,
       case when g.gate is null or g.gate in (3, 4) or (g.gate = 9 and g.ordering_hold) then (select count(*) from (
           select from {schema}.gated w where w.gate = 2 and w.ordering_key = g.ordering_key limit %(most)s) x) end as behind,
       case when g.gate = 3 then (select count(*) from (
           select from {schema}.gated h where h.concurrency_key = g.concurrency_key and (h.gate is null or h.gate = 4)
            limit %(most)s) x) end as taken,
       case g.gate
           when 2 then array(
               select h.job_id from {schema}.gated h
                where h.ordering_key = g.ordering_key
                  and (h.gate is null or h.gate in (3, 4) or (h.gate = 9 and h.ordering_hold)) limit %(some)s)
           when 3 then array(
               select h.job_id from {schema}.gated h
                where h.concurrency_key = g.concurrency_key and (h.gate is null or h.gate = 4) limit %(some)s)
           else '{}'::bigint[]
       end as holders,
       case when g.gate = 1 then (
           select json_agg(json_build_array(p.parent, p.status, p.failed) order by p.parent) from (
               select l.parent, l.failed,
                      coalesce((select case when j.lease is null then 'queued' else 'running' end
                                  from {schema}.job j where j.id = l.parent),
                               (select d.status from {schema}.dead_letter d where d.id = l.parent), 'done') as status
                 from {schema}.job_after l where l.child = g.job_id order by l.parent limit %(some)s) p) end as parents,
       case when g.gate = 1 then (select count(*) from (
           select from {schema}.job_after l where l.child = g.job_id limit %(most)s) x) end as parents_all,
       array(select c.child from children c) as children
  from (select) one
  left join mine g on true
 where g.job_id is not null or exists (select from children)
