-- put_back: pass by due jobs of kinds that the caller has no handler for, many at a time and unclaimed.
--
-- For a lane that is full of them: claimed one by one they would hold up the jobs behind them for as long as
-- it takes to claim and settle each. Each is put off as `settle` does with the event unknown: ever more rarely.
--
-- Moves    queued -> queued, later. Nothing is charged.
-- Params   lanes with the marks to start from, as in work. p_known: the kinds that are left alone. p_due_s: only
--          jobs that have been due for so long: whoever knows the kind has had the time to take them.
--          p_limit_s: those unknown for longer are left for a claim, which buries them. p_limit: the most rows
--          looked at.
-- Left     queues with settings: where jobs wait for a pause to end or for a place, that they are due for long
--          does not show that nobody knows their kind.
-- Returns  the number of jobs put back, and whether rows were left that were not looked at.
-- Locks    the rows it moves; SKIP LOCKED.
-- Index    job_lane from the mark on, then rows by ctid. The settings pin the plan, as in work.
create or replace function {schema}.put_back(
    p_queues text[], p_priorities smallint[], p_mark_at timestamptz[], p_mark_id bigint[], p_known text[], p_due_s float8,
    p_limit_s float8, p_limit integer
) returns table (moved integer, more boolean)
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_material = off
set jit = off
as $fn$
#variable_conflict use_column
declare
    v_now   timestamptz := clock_timestamp();
    v_seen  integer;
    v_moved integer;
    v_left  integer := p_limit;
begin
    moved := 0;
    for i in 1 .. coalesce(cardinality(p_queues), 0) loop
        exit when v_left <= 0;
        continue when exists (select from {schema}.queue q where q.name = p_queues[i]);
        with ahead as materialized (
            select j.ctid as tid, j.kind from {schema}.job j
             where j.queue = p_queues[i] and j.priority = p_priorities[i] and j.lease is null
               and j.run_at <= v_now - make_interval(secs => p_due_s)
               and (j.run_at, j.id + 0) >= (p_mark_at[i], p_mark_id[i])
             order by j.run_at, j.id + 0 limit v_left),
        strange as materialized (
            select j.ctid as tid from ahead a join {schema}.job j on j.ctid = a.tid
             where a.kind <> all (p_known) and j.lease is null and j.cancel_at is null
               and (j.unknown_since is null or j.unknown_since > v_now - make_interval(secs => p_limit_s))
               for no key update of j skip locked),
        put as (
            update {schema}.job j
               set run_at = v_now + make_interval(secs =>
                       least(300, greatest(1, coalesce(extract(epoch from v_now - j.unknown_since), 0))) * (0.5 + random())),
                   unknown_since = coalesce(j.unknown_since, v_now),
                   last_error = case when j.unknown_since is null
                                     then format('no handler for kind %L in a worker that looked: put back for workers that know it', j.kind)
                                     else j.last_error end
              from strange s
             where j.ctid = s.tid
            returning 1)
        select (select count(*) from ahead), (select count(*) from put) into v_seen, v_moved;
        v_left := v_left - v_seen;
        moved := moved + v_moved;
    end loop;
    more := v_left <= 0;
    return next;
end
$fn$;
