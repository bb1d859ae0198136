-- finish_with_results: acknowledge finished jobs and keep what their handlers returned, in one commit.
--
-- A function of its own, so that the many acks without a result (work) do not become dearer. One may be called in
-- a handler's own transaction too.
--
-- Moves    running -> done for (ids, claims).
-- Params   p_session, p_ids, p_claims, p_took, p_keep: as in work. p_values: JSON texts; p_for_s: how long each is
--          kept, seconds; both of the length of p_ids.
-- Returns  the ids that were acknowledged. Of a missing one the lease was lost: nothing of it is kept.
-- Locks, index   as the acks of work.
create or replace function {schema}.finish_with_results(
    p_session bigint, p_ids bigint[], p_claims bigint[], p_took float8[], p_keep integer, p_values text[], p_for_s float8[]
) returns setof bigint
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
declare
    v_now     timestamptz := clock_timestamp();
    v_acked   bigint[];
    v_gated   bigint[];
    v_started timestamptz[];
    v_let_in  bigint[];
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'finish_with_results needs READ COMMITTED, not %', current_setting('transaction_isolation') using errcode = 'QS002';
    end if;
    if not exists (select from {schema}.session s where s.id = p_session and s.closed_at is null) then
        raise exception 'session % is closed', p_session using errcode = 'QS001';
    end if;
    with gone as (
        delete from {schema}.job j
         where j.id = any (p_ids) and j.lease = p_session and j.claims = p_claims[array_position(p_ids, j.id)]
        returning j.*, array_position(p_ids, j.id) as place),
    kept as (
        insert into {schema}.history (id, finished_at, started_at, run_at, created_at, claims, attempts, max_attempts, crashes,
                                      max_crashes, priority, queue, kind, unique_key, last_error, errors, payload, headers,
                                      result_until)
        select g.id, v_now, v_now - make_interval(secs => p_took[g.place]), g.run_at, g.created_at, g.claims, g.attempts,
               g.max_attempts, g.crashes, g.max_crashes, {schema}.own_priority(g.priority), g.queue, g.kind, g.unique_key, g.last_error,
               nullif(g.errors, '[]'),
               case when p_keep > 1 then g.payload end, case when p_keep > 1 then g.headers end,
               v_now + make_interval(secs => p_for_s[g.place])
          from gone g
         where p_keep > 0),
    put as (
        insert into {schema}.result as r (job_id, value, stored_at, expires_at)
        select g.id, p_values[g.place]::jsonb, v_now, v_now + make_interval(secs => p_for_s[g.place])
          from gone g
            on conflict (job_id) do update
           set value = excluded.value, stored_at = excluded.stored_at, expires_at = excluded.expires_at)
    select coalesce(array_agg(g.id), '{}'), array_agg(g.id) filter (where g.gated), array_agg(g.started_at) filter (where g.gated)
      into v_acked, v_gated, v_started from gone g;
    if exists (select from {schema}.job_after) then
        perform {schema}.parents_ended(v_acked);
    end if;
    if v_gated is not null then
        v_let_in := {schema}.run_ended(v_gated, v_started, false);
        perform {schema}.tell_let_in(v_let_in);
    end if;
    if exists (select from {schema}.awaited a where a.until > v_now) then
        perform {schema}.tell_awaited(v_acked);
    end if;
    return query select unnest(v_acked);
end
$fn$;

-- tell_awaited: tell those who wait for the end of one of these jobs, which has come. Internal.
--
-- Called in the transaction that ends them, in a later statement than the one that takes the job's row away, and only
-- where somebody waits at all (`exists ... until > now`, one look at an index that is empty from there on for most).
-- Sends    one notification per waiter, on the channel that it named: ids, separated by commas.
create or replace function {schema}.tell_awaited(p_ids bigint[]) returns void
language plpgsql
set plan_cache_mode = force_generic_plan
as $fn$
begin
    perform pg_notify(w.waiter, string_agg(w.job_id::text, ','))
       from (select a.waiter, a.job_id, row_number() over (partition by a.waiter) / 300 as part
               from {schema}.awaited a
              where a.job_id = any (p_ids) and a.until > clock_timestamp()) w
      group by w.waiter, w.part;
end
$fn$;

-- await_results: what has become of jobs; and whoever asks is told of the end of those that have not ended.
--
-- Params   p_waiter: the channel on which the caller already listens; null only looks. p_for_s: for how long it wants to
--          be told, in seconds; asking again puts that off.
-- Returns  one row per id: status (null: no such job is known), busy (it is about to end: ask again at once, nobody may
--          tell of it), and of an ended one value (JSON text; null: none is kept), kept_until (of a result that there
--          is or was), reason, last_error, attempts.
-- Order    the caller registers, then takes a lock that the end of a run waits for, then looks. Whoever ends a job
--          later sees the registration; where somebody is just ending it, the lock is not to be had, and the row is busy.
--          So no end can fall between the look and the registration. The end waits for one statement at most, whose
--          commit waits for no disk. Nobody is waited for here.
-- Rights   its owner's: who may enqueue or operate may wait, and need not see the tables.
create or replace function {schema}.await_results(p_waiter text, p_ids bigint[], p_for_s float8)
returns table (id bigint, status text, busy boolean, value text, kept_until timestamptz, reason text, last_error text, attempts integer)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $fn$
#variable_conflict use_column
declare
    v_locked bigint[];
    v_ended  bigint[] := '{}';
begin
    if p_waiter is not null then
        -- A registration that a crash of the server takes away has lost its listener too.
        perform set_config('synchronous_commit', 'off', true);
        insert into {schema}.awaited as a (job_id, waiter, until)
        select distinct i.id, p_waiter, clock_timestamp() + make_interval(secs => p_for_s) from unnest(p_ids) as i (id) order by 1
            on conflict (job_id, waiter) do update set until = excluded.until;
        select array_agg(l.id) into v_locked from (
            select j.id from {schema}.job j where j.id = any (p_ids) order by j.id for key share skip locked) l;
    end if;
    for id in select distinct i.id from unnest(p_ids) as i (id) order by 1 loop
        select s.status, s.value, s.kept_until, s.reason, s.last_error, s.attempts
          into status, value, kept_until, reason, last_error, attempts
          from (select case when j.lease is null then 'queued' else 'running' end as status, null::text as value,
                       null::timestamptz as kept_until, null::text as reason, j.last_error, j.attempts, 1 as rank
                  from {schema}.job j where j.id = await_results.id
                union all
                select d.status, null, null, d.reason, d.last_error, d.attempts, 2
                  from {schema}.dead_letter d where d.id = await_results.id
                union all
                select 'done', r.value::text, r.expires_at, null, null, null, 3
                  from {schema}.result r where r.job_id = await_results.id and r.expires_at > clock_timestamp()
                union all
                select 'done', null, h.result_until, null, h.last_error, h.attempts, 4
                  from {schema}.history h where h.id = await_results.id) s
         order by s.rank limit 1;
        busy := false;
        if status in ('queued', 'running') then
            busy := p_waiter is not null and id <> all (coalesce(v_locked, '{}'));
        else
            v_ended := v_ended || id;
        end if;
        return next;
    end loop;
    if p_waiter is not null and v_ended <> '{}' then
        delete from {schema}.awaited a where a.job_id = any (v_ended) and a.waiter = p_waiter;
    end if;
end
$fn$;

-- forget_awaited: the caller waits no more. Registrations that are left behind are pruned by their age.
create or replace function {schema}.forget_awaited(p_waiter text, p_ids bigint[]) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $fn$
    select set_config('synchronous_commit', 'off', true);
    delete from {schema}.awaited a where a.job_id = any (p_ids) and a.waiter = p_waiter;
$fn$;

-- say_progress: keep what running jobs say of themselves.
--
-- Params   p_session; ids, claims: the runs, each once; shares 0..1, notes: of one length.
-- Returns  how many were written. One that is not held any more is left alone.
-- Locks    the rows it writes; SKIP LOCKED: one that is being ended or cancelled needs no progress. HOT.
create or replace function {schema}.say_progress(p_session bigint, p_ids bigint[], p_claims bigint[], p_shares real[], p_notes text[])
returns integer
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $fn$
declare
    v_count integer;
begin
    with held as materialized (
        select j.ctid as tid, array_position(p_ids, j.id) as place from {schema}.job j
         where j.id = any (p_ids) and j.lease = p_session and j.claims = p_claims[array_position(p_ids, j.id)]
           for no key update of j skip locked)
    update {schema}.job j
       set progress = p_shares[h.place], progress_note = p_notes[h.place], progress_at = clock_timestamp()
      from held h
     where j.ctid = h.tid;
    get diagnostics v_count = row_count;
    return v_count;
end
$fn$;
