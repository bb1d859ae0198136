-- retry_job: put dead or cancelled jobs back, with their counts reset. An operator's word.
--
-- Returns  the ids put back. A missing one was not in the dead letters. A unique_key that another job
--          holds now is an error (23505), and nothing is put back.
-- Gates    it waits at them anew, under its old id.
-- Rights   its owner's: an operator needs EXECUTE and no right to change a table.
create or replace function {schema}.retry_job(p_ids bigint[]) returns setof bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
declare
    v_back  bigint[];
    v_gated bigint[];
begin
    with back as (delete from {schema}.dead_letter d where d.id = any (p_ids) returning d.*),
    added as (
        insert into {schema}.job (id, run_at, gated, claims, created_at, max_attempts, max_crashes, priority, queue, kind, unique_key,
                                  timeout, payload, headers, last_error, errors)
        select b.id, case when g.job_id is null then clock_timestamp() else {schema}.parked_at() end,
               case when g.job_id is not null then true end, b.claims, b.created_at, b.max_attempts, b.max_crashes, b.priority,
               b.queue, b.kind, b.unique_key, b.timeout, b.payload, b.headers, b.last_error,
               {schema}.noted(b.errors, jsonb_build_object('at', clock_timestamp(), 'event', 'retried', 'by', session_user,
                                                           'status', b.status, 'attempt', b.attempts, 'claims', b.claims))
          from back b
          left join {schema}.gated g on g.job_id = b.id
         order by b.unique_key nulls first, b.id  -- as bulks insert keys: the two cannot deadlock
        returning id, gated)
    select array_agg(a.id), array_agg(a.id) filter (where a.gated) into v_back, v_gated from added a;
    if v_gated is not null then
        perform {schema}.enter_gates(v_gated);
    end if;
    return query select unnest(v_back);
end
$fn$;

-- cancel_job: queued jobs leave the queue; running ones are told to stop and can never go back to it.
--
-- Params   p_kill_after: so long after that a running one's supervisor kills its worker if its handler has not stopped
--          (the worker's other jobs go back untouched); null: it is never killed for it. Asked again, the earlier
--          time counts.
-- Returns  each id with what happened: cancelled, or asked (running: its handler is being told).
--          A missing id was neither queued nor running.
-- Locks    first what is queued, in the order of keys, as bulks of producers take it; then what runs, in
--          the order of ids, as workers take it. A producer may wait for either, a worker never for a
--          producer, so no circle closes.
-- Rights   as retry_job.
create or replace function {schema}.cancel_job(p_ids bigint[], p_kill_after interval) returns table (id bigint, what text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $fn$
#variable_conflict use_column
declare
    v_job  {schema}.job;
    v_kill timestamptz;
begin
    if p_kill_after < interval '0' or p_kill_after > interval '1 day' then
        raise exception 'kill_after must be between 0 and 1 day' using errcode = '22023';
    end if;
    for v_job in
        select j.* from {schema}.job j where j.id = any (p_ids)
         order by j.lease is not null, case when j.lease is null then {schema}.key_of(j.id, j.unique_key) end nulls first, j.id
           for update  -- not less: 046_gate.sql says why
    loop
        id := v_job.id;
        v_kill := least(v_job.kill_at, case when v_job.lease is not null then clock_timestamp() + p_kill_after end);
        if v_job.cancel_at is null or v_kill is distinct from v_job.kill_at then
            update {schema}.job j
               set cancel_at = coalesce(j.cancel_at, clock_timestamp()),
                   kill_at = v_kill,
                   errors = case when j.cancel_at is null
                                 then {schema}.noted(j.errors, jsonb_build_object(
                                          'at', clock_timestamp(), 'event', 'cancelled', 'by', session_user, 'claims', j.claims))
                                 else j.errors end
             where j.id = v_job.id;
        end if;
        if v_job.lease is null then
            perform {schema}.bury(v_job.id, 'cancelled', 'operator');
            what := 'cancelled';
        else
            -- Not gated by waiting: its holder may be busy, and must hear of it.
            perform pg_notify({channel}, json_strip_nulls(json_build_object(
                'cancel', v_job.id, 'session', v_job.lease, 'claims', v_job.claims,
                'kill', extract(epoch from v_kill - clock_timestamp())))::text);
            what := 'asked';
        end if;
        return next;
    end loop;
end
$fn$;

-- cancel_job, without force.
create or replace function {schema}.cancel_job(p_ids bigint[]) returns table (id bigint, what text)
language sql security definer set search_path = pg_catalog, pg_temp as $fn$
    select c.id, c.what from {schema}.cancel_job(p_ids, null) c
$fn$;

-- cancels_of: which of these runs were cancelled. For a supervisor that may have missed a notification: of its own
-- running jobs.
--
-- Params   ids, claims: runs.
-- Returns  of those that were cancelled: id, claims, and seconds until the worker may be killed for it (null: never).
-- Index    job_pkey.
create or replace function {schema}.cancels_of(p_ids bigint[], p_claims bigint[])
returns table (id bigint, claims bigint, kill_in_s float8)
language sql stable as $fn$
    select j.id, j.claims, extract(epoch from j.kill_at - clock_timestamp())::float8
      from unnest(p_ids, p_claims) as run (id, claims)
     cross join lateral (select x.* from {schema}.job x where x.id = run.id offset 0) j
     where j.claims = run.claims and j.lease is not null and j.cancel_at is not null
$fn$;

-- reschedule_job: give queued jobs another time. An operator's word.
--
-- Params   p_at: a point in time, or p_delay: from now; neither means now, and a time in the past means now.
-- Returns  the ids moved, with their new time. A missing one was not queued: it runs, or it has ended.
-- Gates    one that waits at a gate stays there, and is due at the new time when it is let in.
-- Locks    what is queued, in the order of keys, as bulks of producers take it. A claim steps over a locked
--          row; one that came first is waited for, and its job is left alone.
-- Marks    the new place is never below the clock, where every worker looks; the wake-up sets marks back to
--          it if this commits late, as for an enqueue.
-- Rights   as retry_job.
create or replace function {schema}.reschedule_job(p_ids bigint[], p_at timestamptz default null, p_delay interval default null)
returns table (id bigint, run_at timestamptz)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $fn$
#variable_conflict use_column
declare
    v_now  timestamptz := clock_timestamp();
    v_at   timestamptz := greatest(v_now, coalesce(p_at, v_now + coalesce(p_delay, '0')));
    v_job  {schema}.job;
    v_was  timestamptz;
    v_back jsonb := '[]';
begin
    if p_at is not null and p_delay is not null then
        raise exception 'give a point in time or a delay, not both' using errcode = '22023';
    end if;
    if v_at > '9999-12-31 00:00:00+00' then
        raise exception 'run_at must be before the year 10000' using errcode = '22023';
    end if;
    for v_job in
        select j.* from {schema}.job j
         where j.id = any (p_ids) and j.lease is null and j.run_at < 'infinity'
         order by {schema}.key_of(j.id, j.unique_key) nulls first, j.id
           for update  -- not less: 046_gate.sql says why
    loop
        v_was := case when v_job.gated then {schema}.set_due(v_job.id, v_at) end;
        update {schema}.job j
           set run_at = case when v_was is null then v_at else j.run_at end,
               errors = {schema}.noted(j.errors, jsonb_build_object(
                   'at', v_now, 'event', 'rescheduled', 'by', session_user, 'was', coalesce(v_was, v_job.run_at), 'to', v_at))
         where j.id = v_job.id;
        if v_was is null then
            v_back := v_back || jsonb_build_object('queue', v_job.queue, 'priority', v_job.priority);
        end if;
        id := v_job.id;
        run_at := v_at;
        return next;
    end loop;
    perform {schema}.wake(b.queue, array_agg(distinct b.priority), v_at)
       from jsonb_to_recordset(v_back) as b (queue text, priority smallint)
      group by b.queue;
end
$fn$;
