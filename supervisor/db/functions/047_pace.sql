-- Rates of queues: at most n jobs of one are claimed in any period, evenly, in the whole cluster.
--
-- Evenly    a start each period / n. One that comes late is made up for as far as that takes 50 ms: the earliest
--           time of a start is 50 ms before its turn, so after a pause 1 + 50 ms / (period / n) may start at once
--           (GCRA with this tolerance).
-- Exactly   the starts of the last period are counted besides, by started_at: as many as there are of the newest n
--           wait to be a period old. They are noted in at most some hundred groups of up to n / 50, each as old as its
--           newest start: so never more than n, and under saturation 98% of n, less the time that it takes to begin
--           the next start once in a period. With n up to 50 each start is noted by itself.
-- Order     who decides holds the queue's row (hold_places), and read the clock before that. Of the starts within any
--           period the one that was decided last had all others before it, and counted them.
-- Changes   starts of before count at once for another rate, as far as they were noted for the old one. A turn that lies
--           further ahead than this rate can have set it (it was slower, or the clock was set back) is forgotten, and so
--           are starts more than 10 s in the future.

-- pace_of: how many jobs of a queue its rate lets start now. Internal, but to look.
--
-- Returns  one row: free (null: no rate); again: when more may start. Where many start in 50 ms, a quarter of those:
--          nobody is woken for each.
-- Index    pace_pkey from its end.
-- Plans    search_path is pinned since callers have different ones: plans are kept for one, and made anew for another.
create or replace function {schema}.pace_of(p_queue text, p_now timestamptz, out free integer, out again timestamptz)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $fn$
declare
    c_slack  constant float8 := 0.05;
    v_limit  integer;
    v_period float8;  -- these in seconds
    v_step   float8;
    v_ahead  float8;
    v_pace   {schema}.pace;
    v_recent integer := 0;
    v_wanted integer;
    v_full   boolean := false;
    v_at     timestamptz;
begin
    select q.rate_limit, extract(epoch from q.rate_period) into v_limit, v_period from {schema}.queue q where q.name = p_queue;
    if v_limit is null then
        return;
    end if;
    select p.* into v_pace from {schema}.pace p where p.queue = p_queue order by p.turn desc limit 1;
    v_step := v_period / v_limit;
    v_ahead := greatest(0, coalesce(extract(epoch from v_pace.next_at - p_now), 0));
    if v_ahead > v_step + c_slack + 1 then
        v_ahead := 0;
    end if;
    free := case when v_ahead <= c_slack then floor((c_slack - v_ahead) / v_step)::integer + 1 else 0 end;
    v_wanted := 1 + floor(c_slack / v_step)::integer / 4;
    again := p_now + make_interval(secs => greatest(0, v_ahead - c_slack + (v_wanted - 1) * v_step));
    for i in reverse coalesce(cardinality(v_pace.ats), 0) .. 1 loop
        v_at := v_pace.ats[i];
        continue when v_at > p_now + interval '10 s';
        exit when v_at < p_now - make_interval(secs => v_period);
        v_recent := v_recent + v_pace.counts[i];
        -- With this one and the newer ones there is no room for as many as are wanted: it must be past.
        if not v_full and v_recent > v_limit - v_wanted then
            v_full := true;
            again := greatest(again, v_at + make_interval(secs => v_period) + interval '1 microsecond');
        end if;
    end loop;
    free := greatest(0, least(free, v_limit - v_recent));
end
$fn$;

-- note_starts: so many jobs of a queue with a rate have been claimed now. Internal; the caller holds the queue.
create or replace function {schema}.note_starts(p_queue text, p_starts integer, p_now timestamptz) returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $fn$
declare
    v_limit  integer;
    v_period float8;
    v_pace   {schema}.pace;
    v_old    bigint;
    v_at     timestamptz;
    v_ats    timestamptz[] := '{}';
    v_counts integer[] := '{}';
    v_last   integer;
begin
    select q.rate_limit, extract(epoch from q.rate_period) into v_limit, v_period from {schema}.queue q where q.name = p_queue;
    if v_limit is null then
        return;
    end if;
    select p.* into v_pace from {schema}.pace p where p.queue = p_queue order by p.turn desc limit 1;
    v_old := v_pace.turn;
    for i in 1 .. coalesce(cardinality(v_pace.ats), 0) loop
        v_at := v_pace.ats[i];
        if v_at between p_now - make_interval(secs => v_period) and p_now + interval '10 s' then
            v_ats := v_ats || v_at;
            v_counts := v_counts || v_pace.counts[i];
        end if;
    end loop;
    v_last := cardinality(v_ats);
    if v_last > 0 and v_counts[v_last] + p_starts <= ceil(v_limit / 50.0) then
        v_ats[v_last] := greatest(v_ats[v_last], p_now);
        v_counts[v_last] := v_counts[v_last] + p_starts;
    else
        v_ats := v_ats || p_now;
        v_counts := v_counts || p_starts;
    end if;
    insert into {schema}.pace (queue, turn, next_at, ats, counts)
    values (p_queue, coalesce(v_old, 0) + 1,
            case when v_pace.next_at between p_now and p_now + make_interval(secs => v_period / v_limit + 1.05)
                 then v_pace.next_at else p_now end
                + make_interval(secs => p_starts * v_period / v_limit),
            v_ats, v_counts);
    delete from {schema}.pace p where p.queue = p_queue and p.turn = v_old;
end
$fn$;

-- starts_again: when more jobs of a queue may start, that jobs wait for; null where they wait for a place, not for
-- its rate. Where both let some start, another claim has the queue at this moment: a little later.
create or replace function {schema}.starts_again(p_queue text, p_now timestamptz) returns timestamptz
language plpgsql as $fn$
declare
    v_free  integer;
    v_again timestamptz;
begin
    select p.free, p.again into v_free, v_again from {schema}.pace_of(p_queue, p_now) p;
    if v_free = 0 then
        return v_again;
    elsif v_free > 0 and {schema}.free_places(p_queue) > 0 then
        return p_now + interval '20 ms';
    end if;
    return null;
end
$fn$;
