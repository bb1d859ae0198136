-- own_priority: a job's priority as it was asked for, whether it is a suspect or not.
create or replace function {schema}.own_priority(p_priority smallint) returns smallint
language sql immutable as $fn$
    select (case when p_priority > 500 then p_priority - 1000 else p_priority end)::smallint
$fn$;

-- noted: a job's record of what befell it, with one more entry; its last ten are kept. Internal.
--
-- Params   p_entry: an object with "at", "event" and what else is known. Events are those of move that had
--          an error (with "attempt", "claims", "error"), and what operators did: retried, cancelled (a running
--          job was told to stop), rescheduled (with "was", "to"); theirs have "by", the database role.
create or replace function {schema}.noted(p_errors jsonb, p_entry jsonb) returns jsonb
language sql immutable as $fn$
    select case when jsonb_typeof(p_errors) <> 'array' then '[]'
                when jsonb_array_length(p_errors) >= 10 then p_errors - 0
                else p_errors end || p_entry
$fn$;

-- bury: take a job out of the queue for good, until an operator retries it. Internal.
--
-- Params   p_status: dead or cancelled. p_reason: attempts, crashes, payload, cancel, unknown_kind,
--          operator, parent. The caller holds the row's lock.
-- Gates    its keys, and jobs that wait for it, are looked at (046_gate.sql).
create or replace function {schema}.bury(p_id bigint, p_status text, p_reason text) returns void
language plpgsql as $fn$
declare
    g {schema}.job;
begin
    delete from {schema}.job j where j.id = p_id returning j.* into g;
    if not found then
        return;
    end if;
    insert into {schema}.dead_letter (id, status, reason, finished_at, run_at, started_at, created_at, claims, attempts, max_attempts,
                                      crashes, max_crashes, priority, queue, kind, unique_key, timeout, payload, headers,
                                      last_error, errors)
    values (g.id, p_status, p_reason, clock_timestamp(),
            coalesce((select x.due_at from {schema}.gated x where g.gated and x.job_id = g.id and x.gate is not null), g.run_at),
            g.started_at, g.created_at, g.claims, g.attempts, g.max_attempts, g.crashes, g.max_crashes,
            {schema}.own_priority(g.priority), g.queue, g.kind, g.unique_key, g.timeout, g.payload, g.headers, g.last_error, g.errors);
    if g.gated then
        perform {schema}.buried(p_id, p_status);
    end if;
    if exists (select from {schema}.job_after l where l.parent = p_id) then
        perform {schema}.parents_ended(array[p_id]);
    end if;
    if exists (select from {schema}.awaited a where a.until > clock_timestamp()) then
        perform {schema}.tell_awaited(array[p_id]);
    end if;
end
$fn$;

-- move: end one run of one job as an event says. Internal; the one place where a run's end becomes a
-- new state, for workers (settle), for a dead worker's parent (settle) and for the sweep alike.
-- The moves are those of TRANSITIONS in supervisor/job.py; a test compares the two.
--
-- Params   p_job: the row, locked by the caller and known to be the caller's to move.
--          p_event: failed, dead, snoozed, released, interrupted, crashed, suspect, unknown.
--          p_error: text kept with the job; p_reason: why it is dead. p_delay_s: explicit delay or
--          null. p_base_s, p_cap_s: backoff. p_limit_s: how long an unknown kind is put back.
--          p_front: where a job that goes back untouched is placed; null keeps its place.
-- Returns  the new status.
create or replace function {schema}.move(p_job {schema}.job, p_event text, p_error text, p_reason text, p_delay_s float8,
                                         p_base_s float8, p_cap_s float8, p_limit_s float8, p_front timestamptz) returns text
language plpgsql as $fn$
declare
    v_now      timestamptz := clock_timestamp();
    v_attempts integer := p_job.attempts - case when p_event in ('failed', 'dead') then 0 else 1 end;
    v_crashes  integer := p_job.crashes + case when p_event = 'crashed' then 1 else 0 end;
    -- A release says nothing about who knows the kind; any other end means that someone ran it.
    v_since    timestamptz := case when p_event = 'unknown' then coalesce(p_job.unknown_since, v_now)
                                   when p_event = 'released' then p_job.unknown_since end;
    v_dead     text;
    v_run_at   timestamptz;
begin
    if p_event not in ('failed', 'dead', 'snoozed', 'released', 'interrupted', 'crashed', 'suspect', 'unknown') then
        raise exception 'unknown event %', quote_literal(p_event) using errcode = '22023';
    end if;
    if p_job.cancel_at is not null then
        v_dead := 'operator';
    elsif p_event = 'dead' then
        v_dead := coalesce(p_reason, 'cancel');
    elsif p_event = 'failed' and p_job.attempts >= p_job.max_attempts then
        v_dead := 'attempts';
    elsif p_event = 'crashed' and v_crashes >= p_job.max_crashes then
        v_dead := 'crashes';
    elsif p_event = 'unknown' and v_now - v_since > make_interval(secs => p_limit_s) then
        v_dead := 'unknown_kind';
    end if;
    v_run_at := case
        when p_event in ('released', 'interrupted', 'suspect') then coalesce(p_front, p_job.run_at)
        -- Never back in time, and no further ahead than ten years: a delay of any size, NaN included, is stored.
        when p_delay_s is not null then v_now + make_interval(secs => least(greatest(p_delay_s, 0), 315360000))
        when p_event = 'failed' then v_now + {schema}.backoff(p_job.attempts, p_base_s, p_cap_s)
        when p_event = 'crashed' then v_now + {schema}.backoff(v_crashes, p_base_s, p_cap_s)
        -- Put back for workers that know the kind: ever more rarely, so that a flood of them costs little.
        else v_now + make_interval(secs => least(300, greatest(1, extract(epoch from v_now - v_since))) * (0.5 + random()))
    end;
    update {schema}.job j
       set lease = null,
           started_at = null,
           attempts = v_attempts,
           crashes = v_crashes,
           -- A suspect waits in a lane of its own. A run that the worker survived clears the suspicion; one
           -- that never started says nothing.
           priority = case when p_event = 'suspect' then {schema}.own_priority(p_job.priority) + 1000
                           when p_event in ('failed', 'dead', 'snoozed') then {schema}.own_priority(p_job.priority)
                           else p_job.priority end,
           suspect = p_event = 'suspect' or p_job.priority > 500 and p_event not in ('failed', 'dead', 'snoozed'),
           unknown_since = v_since,
           run_at = case when v_dead is null then v_run_at else p_job.run_at end,
           last_error = case when p_error is null then p_job.last_error else left(p_error, 10000) end,
           errors = case when p_error is null then p_job.errors
                         else {schema}.noted(p_job.errors, jsonb_build_object(
                                  'at', v_now, 'event', p_event, 'attempt', p_job.attempts, 'claims', p_job.claims,
                                  'error', left(p_error, 2000)))
                    end
     where j.id = p_job.id;
    if p_job.gated then
        perform {schema}.run_started(p_job.id, p_job.started_at);
    end if;
    if v_dead is null then
        if p_job.gated then
            perform {schema}.go_back(p_job.id, v_run_at, p_event not in ('released', 'interrupted', 'suspect'));
        end if;
        return 'queued';
    end if;
    perform {schema}.bury(p_job.id, case when v_dead = 'operator' then 'cancelled' else 'dead' end, v_dead);
    return case when v_dead = 'operator' then 'cancelled' else 'dead' end;
end
$fn$;

-- settle: end runs other than by success; release what never started; recover what a dead worker held.
--
-- Moves    running -> queued, dead, cancelled or done, by the event of each position (see move;
--          'done' acknowledges a run that had returned when its worker died).
-- Params   arrays of one length: ids, claims (fencing tokens), events, errors, reasons, delays_s,
--          bases_s, caps_s. p_keep: as in work. p_limit_s: limit for unknown kinds.
-- Returns  one row per job moved: id, new status, seconds until it is due (null unless queued).
--          A missing id was stale: its lease was lost and nothing was written for it.
-- Locks    rows leased to the session, in id order; for update, since some are deleted (046_gate.sql says why).
-- Index    job_pkey.
create or replace function {schema}.settle(
    p_session bigint, p_ids bigint[], p_claims bigint[], p_events text[], p_errors text[], p_reasons text[],
    p_delays_s float8[], p_bases_s float8[], p_caps_s float8[], p_keep integer, p_limit_s float8
) returns table (id bigint, status text, due_in_s float8)
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $fn$
#variable_conflict use_column
declare
    r      record;
    v_job  {schema}.job;
    v_lane smallint;
    v_back jsonb := '[]';
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'settle needs READ COMMITTED, not %', current_setting('transaction_isolation') using errcode = 'QS002';
    end if;
    for r in
        select * from unnest(p_ids, p_claims, p_events, p_errors, p_reasons, p_delays_s, p_bases_s, p_caps_s)
                   as m (id, claims, event, error, reason, delay_s, base_s, cap_s)
         order by m.id
    loop
        select j.* into v_job from {schema}.job j
         where j.id = r.id and j.lease = p_session and j.claims = r.claims
           for update;
        continue when not found;
        id := r.id;
        due_in_s := null;
        if r.event = 'done' then
            with gone as (delete from {schema}.job j where j.id = r.id)
            insert into {schema}.history (id, finished_at, started_at, run_at, created_at, claims, attempts, max_attempts, crashes,
                                          max_crashes, priority, queue, kind, unique_key, last_error, errors, payload, headers)
            select v_job.id, clock_timestamp(), v_job.started_at, v_job.run_at, v_job.created_at, v_job.claims, v_job.attempts,
                   v_job.max_attempts, v_job.crashes, v_job.max_crashes, {schema}.own_priority(v_job.priority), v_job.queue, v_job.kind, v_job.unique_key,
                   v_job.last_error, nullif(v_job.errors, '[]'), case when p_keep > 1 then v_job.payload end,
                   case when p_keep > 1 then v_job.headers end
             where p_keep > 0;
            if v_job.gated then
                perform {schema}.run_ended(array[r.id], array[v_job.started_at], false);
            end if;
            if exists (select from {schema}.job_after l where l.parent = r.id) then
                perform {schema}.parents_ended(array[r.id]);
            end if;
            if exists (select from {schema}.awaited a where a.until > clock_timestamp()) then
                perform {schema}.tell_awaited(array[r.id]);
            end if;
            status := 'done';
        else
            status := {schema}.move(v_job, r.event, r.error, r.reason, r.delay_s, r.base_s, r.cap_s, p_limit_s, null);
            if status = 'queued' then
                select extract(epoch from coalesce(
                           (select g.due_at from {schema}.gated g where v_job.gated and g.job_id = r.id and g.gate is not null),
                           j.run_at) - clock_timestamp()), j.priority
                  into due_in_s, v_lane
                  from {schema}.job j where j.id = r.id;
                if due_in_s <= 0 then
                    v_back := v_back || jsonb_build_object('queue', v_job.queue, 'priority', v_lane, 'at', v_job.run_at);
                end if;
            end if;
        end if;
        return next;
    end loop;
    -- Released jobs lie behind other workers' marks: say how far back to look.
    perform {schema}.wake(b.queue, array_agg(distinct b.priority), min(b.at))
       from jsonb_to_recordset(v_back) as b (queue text, priority smallint, at timestamptz)
      group by b.queue;
end
$fn$;
