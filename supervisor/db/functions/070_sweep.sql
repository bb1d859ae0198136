-- discover: lanes that have rows but no entry in the lane table (made by raw inserts, or announced to
-- nobody). Lanes that have been empty when looked at, once a day, are forgotten: else names that were
-- used once would be read by every tick for ever. One that is used again is found again.
--
-- Looks only into the gaps between known lanes: one index descent per gap, and never a walk over the
-- dead entries inside a lane.
-- Returns  the number of lanes added.
create or replace function {schema}.discover() returns integer
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $fn$
declare
    v_queue    text := '';
    v_priority smallint := -32768;
    v_added    integer := 0;
    v_found    record;
    v_known    record;
begin
    for v_known in
        select l.queue, l.priority, l.mark_at, l.mark_id from {schema}.lane l where l.seen_at < clock_timestamp() - interval '1 day'
    loop
        if exists (select from {schema}.job j
                    where j.queue = v_known.queue and j.priority = v_known.priority
                      and (j.run_at, j.id + 0) >= (v_known.mark_at, v_known.mark_id)) then
            update {schema}.lane l set seen_at = clock_timestamp() where l.queue = v_known.queue and l.priority = v_known.priority;
        else
            delete from {schema}.lane l where l.queue = v_known.queue and l.priority = v_known.priority;
        end if;
    end loop;
    for v_known in
        (select l.queue, l.priority, false as last from {schema}.lane l order by l.queue, l.priority)
        union all
        select null, null, true
    loop
        loop
            if v_known.last then
                select j.queue, j.priority into v_found from {schema}.job j
                 where (j.queue, j.priority) > (v_queue, v_priority)
                 order by j.queue, j.priority, j.run_at, j.id + 0 limit 1;
            else
                select j.queue, j.priority into v_found from {schema}.job j
                 where (j.queue, j.priority) > (v_queue, v_priority) and (j.queue, j.priority) < (v_known.queue, v_known.priority)
                 order by j.queue, j.priority, j.run_at, j.id + 0 limit 1;
            end if;
            exit when not found;
            insert into {schema}.lane (queue, priority) values (v_found.queue, v_found.priority) on conflict do nothing;
            v_added := v_added + 1;
            v_queue := v_found.queue;
            v_priority := v_found.priority;
        end loop;
        if not v_known.last then
            v_queue := v_known.queue;
            v_priority := v_known.priority;
        end if;
    end loop;
    return v_added;
end
$fn$;

-- low_water: where each lane's unclaimed rows begin, and when its next job is due.
--
-- Params   lanes with the mark to start from. p_lookback: a mark never rises above now minus this.
-- Returns  per lane (ord from 1): the mark, whether a job is due now and can be claimed (its queue is neither
--          paused nor full), seconds to the next later one (null: none, or paused), and how long the look took
--          in milliseconds (what the published mark saves).
create or replace function {schema}.low_water(p_queues text[], p_priorities smallint[], p_at timestamptz[], p_id bigint[],
                                              p_lookback interval)
returns table (ord integer, mark_at timestamptz, mark_id bigint, due boolean, next_s float8, cost_ms float8)
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $fn$
#variable_conflict use_column
declare
    v_now    timestamptz;
    v_floor  timestamptz;
    v_set    text[];  -- the queues asked for that have settings
    v_paused text[];
begin
    select array_agg(q.name), array_agg(q.name) filter (where q.paused_at is not null) into v_set, v_paused
      from {schema}.queue q where q.name = any (p_queues);
    for i in 1 .. coalesce(cardinality(p_queues), 0) loop
        v_now := clock_timestamp();
        v_floor := v_now - p_lookback;
        ord := i;
        select j.run_at, j.id into mark_at, mark_id from {schema}.job j
         where j.queue = p_queues[i] and j.priority = p_priorities[i] and j.lease is null and j.run_at <= v_now
           and (j.run_at, j.id + 0) >= (least(p_at[i], v_floor), case when p_at[i] <= v_floor then p_id[i] else 0 end)
         order by j.run_at, j.id + 0 limit 1;
        due := found;
        if not due or mark_at > v_floor then
            mark_at := v_floor;
            mark_id := 0;
        end if;
        cost_ms := extract(epoch from clock_timestamp() - v_now) * 1000;
        if due and p_queues[i] = any (v_set) then
            due := {schema}.free_places(p_queues[i]) is distinct from 0;
        end if;
        next_s := null;
        if p_queues[i] = any (v_paused) then
            return next;
            continue;
        end if;
        select extract(epoch from j.run_at - clock_timestamp()) into next_s from {schema}.job j
         where j.queue = p_queues[i] and j.priority = p_priorities[i] and j.lease is null
           and j.run_at > v_now and j.run_at < {schema}.parked_at()
         order by j.run_at, j.id + 0 limit 1;
        return next;
    end loop;
end
$fn$;

-- sweep: repair what lies behind a lane's low-water mark, and free what closed sessions hold.
--
-- In [lo, hi) of a lane: a row that is unclaimed (it committed late, or its claim was rolled back) is
-- moved to p_front, where every worker looks; a row leased by a session that is no longer live goes
-- back untouched if the session ended, and is charged a crash if it was reaped or is unknown.
-- Params   hi must be a mark computed before this call. p_front null: leave unclaimed rows alone (the
--          range lies above the mark). p_base_s, p_cap_s: backoff of a crash.
-- Returns  one row per job touched: id, what (moved, released, crashed), new status.
-- Locks    rows in lane order, SKIP LOCKED, at most p_limit per call.
-- Index    job_lane; session_pkey per leased row.
create or replace function {schema}.sweep(
    p_queue text, p_priority smallint, p_lo_at timestamptz, p_lo_id bigint, p_hi_at timestamptz, p_hi_id bigint,
    p_front timestamptz, p_base_s float8, p_cap_s float8, p_limit integer
) returns table (id bigint, what text, status text)
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $fn$
#variable_conflict use_column
declare
    v_ids   bigint[];
    v_id    bigint;
    v_job   {schema}.job;
    v_ended boolean;
    v_live  boolean;
begin
    select array_agg(x.id) into v_ids from (
        select j.id from {schema}.job j
         where j.queue = p_queue and j.priority = p_priority
           and (j.run_at, j.id + 0) >= (p_lo_at, p_lo_id) and (j.run_at, j.id + 0) < (p_hi_at, p_hi_id)
           and ((j.lease is null and p_front is not null)
                or (j.lease is not null
                    and not exists (select from {schema}.session s where s.id = j.lease and s.closed_at is null)))
         order by j.run_at, j.id + 0 limit p_limit
           for update of j skip locked) x;  -- not less: 046_gate.sql says why
    -- The rows are locked now. Decide from fresh snapshots: the one above may be older than a lease
    -- taken, and a session opened, while it ran.
    foreach v_id in array coalesce(v_ids, '{}') loop
        select j.* into v_job from {schema}.job j where j.id = v_id;
        continue when not found;
        id := v_id;
        if v_job.lease is null then
            continue when p_front is null;
            update {schema}.job j set run_at = p_front where j.id = v_job.id;
            what := 'moved';
            status := 'queued';
        else
            select s.closed_at is null, s.closed_as = 'ended' into v_live, v_ended from {schema}.session s where s.id = v_job.lease;
            continue when v_live;
            what := case when v_ended then 'released' else 'crashed' end;
            status := {schema}.move(v_job, what,
                case when v_ended then null
                     else format('lease passed: session %s was not renewed in time (its supervisor or its machine was lost)', v_job.lease) end,
                null, null, p_base_s, p_cap_s, null, p_front);
        end if;
        return next;
    end loop;
    if v_ids is not null then
        perform {schema}.wake(p_queue, array[p_priority], coalesce(p_front, p_lo_at));
    end if;
end
$fn$;

-- sweep_lanes: sweep many lanes in one call.
--
-- Params   arrays of one length, a lane per position, as sweep's. p_fronts: null leaves unclaimed rows
--          alone in that lane.
-- Returns  lane (position from 1), id, what, status per job touched.
create or replace function {schema}.sweep_lanes(
    p_queues text[], p_priorities smallint[], p_lo_at timestamptz[], p_lo_id bigint[], p_hi_at timestamptz[], p_hi_id bigint[],
    p_fronts timestamptz[], p_base_s float8, p_cap_s float8, p_limit integer
) returns table (lane integer, id bigint, what text, status text)
language plpgsql as $fn$
begin
    for i in 1 .. coalesce(cardinality(p_queues), 0) loop
        return query
        select i, s.id, s.what, s.status
          from {schema}.sweep(p_queues[i], p_priorities[i], p_lo_at[i], p_lo_id[i], p_hi_at[i], p_hi_id[i], p_fronts[i],
                              p_base_s, p_cap_s, p_limit) s;
    end loop;
end
$fn$;
