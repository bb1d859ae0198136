-- gates: how many jobs wait at each gate, and since when they are due.
--
-- Params   limit: the most looked at per gate; a count of limit means "or more".
-- Returns  gate (parents, order, concurrency, rate), count, seconds since the first of these was due (0: none is, null: none
--          waits); then notes: 0, seconds since the first note was to be looked at (null: none was).
-- Locks    none.
-- Index    gated_order_waiting, gated_concurrency_waiting, gated_rate_waiting from their starts; job_after_child one entry
--          per child, and gated_pkey; gate_note_pkey from its start. Dead entries, under an old snapshot, are walked over:
--          the caller limits the time.
with recursive child as (
    (select l.child from {schema}.job_after l order by l.child limit 1)
    union all
    select (select l.child from {schema}.job_after l where l.child > c.child order by l.child limit 1)
      from child c where c.child is not null)
select 'parents' as gate, count(*), greatest(0, extract(epoch from clock_timestamp() - min(x.due_at)))::float8
  from (select w.due_at from (select c.child from child c where c.child is not null limit %(limit)s) c
         cross join lateral (
               select g.due_at from {schema}.gated g where g.job_id = c.child and g.gate = 1 offset 0) w) x
union all
select 'order', count(*), greatest(0, extract(epoch from clock_timestamp() - min(x.due_at)))::float8
  from (select g.due_at from {schema}.gated g where g.gate = 2 order by g.ordering_key, g.job_id limit %(limit)s) x
union all
select 'concurrency', count(*), greatest(0, extract(epoch from clock_timestamp() - min(x.due_at)))::float8
  from (select g.due_at from {schema}.gated g where g.gate = 3 order by g.concurrency_key, g.due_at, g.job_id limit %(limit)s) x
union all
select 'rate', count(*), greatest(0, extract(epoch from clock_timestamp() - min(x.due_at)))::float8
  from (select g.due_at from {schema}.gated g where g.gate = 4 order by g.rate_key, g.due_at, g.job_id limit %(limit)s) x
union all
select 'notes', 0, extract(epoch from clock_timestamp() - min(x.at))::float8
  from (select n.at from {schema}.gate_note n where n.at <= now() order by n.at, n.id limit 1) x
