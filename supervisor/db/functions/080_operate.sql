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
-- Returns  each id with what happened: cancelled, or asked (running: its handler is being told).
--          A missing id was neither queued nor running.
-- Locks    first what is queued, in the order of keys, as bulks of producers take it; then what runs, in
--          the order of ids, as workers take it. A producer may wait for either, a worker never for a
--          producer, so no circle closes.
-- Rights   as retry_job.
create or replace function {schema}.cancel_job(p_ids bigint[]) returns table (id bigint, what text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $fn$
#variable_conflict use_column
declare
    v_job {schema}.job;
begin
    for v_job in
        select j.* from {schema}.job j where j.id = any (p_ids)
         order by j.lease is not null, case when j.lease is null then j.unique_key end nulls first, j.id
           for no key update
    loop
        id := v_job.id;
        if v_job.cancel_at is null then
            update {schema}.job j
               set cancel_at = clock_timestamp(),
                   errors = {schema}.noted(j.errors, jsonb_build_object(
                       'at', clock_timestamp(), 'event', 'cancelled', 'by', session_user, 'claims', j.claims))
             where j.id = v_job.id;
        end if;
        if v_job.lease is null then
            perform {schema}.bury(v_job.id, 'cancelled', 'operator');
            what := 'cancelled';
        else
            -- Not gated by waiting: its holder may be busy, and must hear of it.
            perform pg_notify({channel}, json_build_object('cancel', v_job.id, 'session', v_job.lease, 'claims', v_job.claims)::text);
            what := 'asked';
        end if;
        return next;
    end loop;
end
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
         order by j.unique_key nulls first, j.id
           for no key update
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
