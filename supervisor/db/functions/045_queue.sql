-- Settings of queues: paused, and how many jobs of one may run at one time, or start in a period, in the whole cluster.
--
-- What must hold   A claim that began before a limit was set may not be seen by whoever sets it. So claims
--                  hold a shared lock from their look at the settings to their end (claims_key), and the runs
--                  of before are counted only when every claim has ended that may not have seen the limit:
--                  await_claims, then running_of, then count_queue. Until then nothing is claimed from the
--                  queue, so what is counted can only become less.
-- Who counts       supervisors, as soon as they hear of the limit, and `supervisor queues set`.
-- Rights           what operators and readers call has its owner's, as retry_job has.

-- claims_key: the advisory lock that claims share. Internal.
create or replace function {schema}.claims_key() returns bigint
language sql immutable as $fn$
    select hashtextextended('pg-supervisor claims ' || {schema_literal}, 0)
$fn$;

-- check_queue: refuse a name that no job's queue can have. Internal.
create or replace function {schema}.check_queue(p_queue text) returns void
language plpgsql as $fn$
begin
    if p_queue is null or octet_length(p_queue) not between 1 and 128 then
        raise exception 'queue must be 1 to 128 bytes long, not %', coalesce(octet_length(p_queue)::text, 'null')
            using errcode = '22023';
    end if;
end
$fn$;

-- tell_queue: say how a queue is set now. Internal.
--
-- Sends    one notification, which a release that does not know "settings" takes for a wake-up. Not gated by
--          waiting: supervisors without idle workers must hear of it too.
create or replace function {schema}.tell_queue(p_queue text) returns void
language plpgsql as $fn$
declare
    v_queue {schema}.queue;
begin
    select q.* into v_queue from {schema}.queue q where q.name = p_queue;
    perform pg_notify({channel}, json_build_object(
        'queue', p_queue,
        'priorities', '[]'::json,
        'at', extract(epoch from clock_timestamp()),
        'settings', json_build_object('paused', v_queue.paused_at is not null, 'max_running', v_queue.max_running,
                                      'counted', coalesce(v_queue.counted, true), 'rate_limit', v_queue.rate_limit,
                                      'rate_period', extract(epoch from v_queue.rate_period)))::text);
end
$fn$;

-- forget_queue: a queue without settings has no row. Internal; the caller holds the row's lock.
create or replace function {schema}.forget_queue(p_queue text) returns void
language sql as $fn$
    delete from {schema}.queue q
     where q.name = p_queue and q.paused_at is null and q.max_running is null and q.rate_limit is null
$fn$;

-- pause_queue: claim nothing more from a queue. What runs goes on, and jobs can still be added.
--
-- Params   by: who did it, for people to see; at most 200 bytes.
-- Returns  whether it was not paused before. A second pause keeps the first one's time and name.
-- When     a claim that is under way when this commits may still come through; unstarted jobs go back.
create or replace function {schema}.pause_queue(queue text, by text default null) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
#variable_conflict use_column
declare
    v_new boolean;
begin
    perform {schema}.check_queue(pause_queue.queue);
    if octet_length(pause_queue.by) > 200 then
        raise exception 'by must be at most 200 bytes long, not %', octet_length(pause_queue.by) using errcode = '22023';
    end if;
    insert into {schema}.queue as q (name, paused_at, paused_by)
    values (pause_queue.queue, clock_timestamp(), pause_queue.by)
        on conflict (name) do update
       set paused_at = excluded.paused_at, paused_by = excluded.paused_by, updated_at = clock_timestamp()
     where q.paused_at is null;
    v_new := found;
    if v_new then
        perform {schema}.tell_queue(pause_queue.queue);
    end if;
    return v_new;
end
$fn$;

-- resume_queue: claim from a paused queue again, at once and everywhere.
--
-- Returns  whether it was paused.
create or replace function {schema}.resume_queue(queue text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
#variable_conflict use_column
begin
    perform {schema}.check_queue(resume_queue.queue);
    update {schema}.queue q
       set paused_at = null, paused_by = null, updated_at = clock_timestamp()
     where q.name = resume_queue.queue and q.paused_at is not null;
    if not found then
        return false;
    end if;
    perform {schema}.forget_queue(resume_queue.queue);
    perform {schema}.tell_queue(resume_queue.queue);
    return true;
end
$fn$;

-- set_queue: set limits of a queue. What is null stays as it is; unset_queue takes limits away.
--
-- Params   max_running: the most jobs of the queue that run at one time in the whole cluster, 1 to 10000.
--          rate_limit, rate_period: the most jobs of it that start in any such period, evenly (047_pace.sql): 1 to
--          1000000 in 1 second to 366 days, 1 second where none is said and none was set.
-- When     from the commit on; runs that have begun before count for max_running, and not for a rate where there was
--          none. A lower limit interrupts nothing: no job starts until fewer run.
drop function if exists {schema}.set_queue(text, integer);
create or replace function {schema}.set_queue(
    queue       text,
    max_running integer  default null,
    rate_limit  integer  default null,
    rate_period interval default null
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
#variable_conflict use_column
begin
    perform {schema}.check_queue(set_queue.queue);
    if coalesce(set_queue.max_running, set_queue.rate_limit) is null and set_queue.rate_period is null then
        raise exception 'nothing to set: give max_running or rate_limit' using errcode = '22023',
            hint = 'unset_queue takes the limits of a queue away';
    end if;
    if set_queue.max_running not between 1 and 10000 then
        raise exception 'max_running is %, must be 1 to 10000', set_queue.max_running using errcode = '22023',
            hint = 'to stop a queue, use pause_queue';
    end if;
    if set_queue.rate_limit not between 1 and 1000000 then
        raise exception 'rate_limit is %, must be 1 to 1000000', set_queue.rate_limit using errcode = '22023',
            hint = 'to stop a queue, use pause_queue';
    end if;
    if set_queue.rate_period not between interval '1 second' and interval '366 days' then
        raise exception 'rate_period is %, must be 1 second to 366 days', set_queue.rate_period using errcode = '22023';
    end if;
    if set_queue.rate_limit is null and set_queue.rate_period is not null
       and not exists (select from {schema}.queue q where q.name = set_queue.queue and q.rate_limit is not null) then
        raise exception 'rate_period needs rate_limit: the queue has no rate' using errcode = '22023';
    end if;
    insert into {schema}.queue as q (name, max_running, limited_at, rate_limit, rate_period)
    values (set_queue.queue, set_queue.max_running, case when set_queue.max_running is not null then clock_timestamp() end,
            set_queue.rate_limit,
            case when set_queue.rate_limit is not null then coalesce(set_queue.rate_period, interval '1 second') end)
        on conflict (name) do update
       set max_running = coalesce(excluded.max_running, q.max_running),
           limited_at = coalesce(q.limited_at, excluded.limited_at),
           counted = q.counted and q.limited_at is not null,
           rate_limit = coalesce(excluded.rate_limit, q.rate_limit),
           rate_period = coalesce(set_queue.rate_period, q.rate_period, excluded.rate_period),
           updated_at = clock_timestamp();
    perform {schema}.tell_queue(set_queue.queue);
end
$fn$;

-- unset_queue: take limits of a queue away. A pause stays.
--
-- Params   what: max_running or rate; null: all there are.
-- Returns  whether it had any of these.
drop function if exists {schema}.unset_queue(text);
create or replace function {schema}.unset_queue(queue text, what text default null) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
#variable_conflict use_column
declare
    v_places boolean := unset_queue.what is distinct from 'rate';
    v_rate   boolean := unset_queue.what is distinct from 'max_running';
begin
    perform {schema}.check_queue(unset_queue.queue);
    if unset_queue.what not in ('max_running', 'rate') then
        raise exception 'what is %, must be max_running or rate', quote_literal(left(unset_queue.what, 100)) using errcode = '22023';
    end if;
    update {schema}.queue q
       set max_running = case when not v_places then q.max_running end,
           limited_at = case when not v_places then q.limited_at end,
           counted = q.counted and not v_places,
           rate_limit = case when not v_rate then q.rate_limit end,
           rate_period = case when not v_rate then q.rate_period end,
           updated_at = clock_timestamp()
     where q.name = unset_queue.queue
       and ((v_places and q.max_running is not null) or (v_rate and q.rate_limit is not null));
    if not found then
        return false;
    end if;
    delete from {schema}.place p where v_places and p.queue = unset_queue.queue;
    delete from {schema}.pace p where v_rate and p.queue = unset_queue.queue;
    perform {schema}.forget_queue(unset_queue.queue);
    perform {schema}.tell_queue(unset_queue.queue);
    return true;
end
$fn$;

-- held_places: the places of a queue that are taken, as this statement sees them. Internal.
--
-- Returns  one row: turn, that of the row read (0: none); ids and tokens of the runs.
-- Index    place_pkey from its end; job_pkey once per place of the last claim.
create or replace function {schema}.held_places(p_queue text) returns table (turn bigint, ids bigint[], tokens bigint[])
language plpgsql security definer
set search_path = pg_catalog, pg_temp
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
    v_ids    bigint[];
    v_tokens bigint[];
begin
    select p.turn, p.ids, p.tokens into turn, v_ids, v_tokens from {schema}.place p
     where p.queue = p_queue order by p.turn desc limit 1;
    -- A run that ends between the two statements is seen as ended: there is only more room. Look-ups one by
    -- one: a join could be planned the other way round, and read every job for each claim.
    select coalesce(array_agg(held.id), '{}'), coalesce(array_agg(held.token), '{}') into ids, tokens
      from unnest(v_ids, v_tokens) as held (id, token)
     cross join lateral (
           select from {schema}.job j where j.id = held.id and j.claims = held.token and j.lease is not null limit 1) run;
    turn := coalesce(turn, 0);
    return next;
end
$fn$;

-- free_places: how many jobs of a queue may start now, by max_running and by its rate: null where it has neither, 0
-- where it is paused or the runs of before its limit are not counted yet. A look: only a claim that holds the places
-- can rely on it.
create or replace function {schema}.free_places(p_queue text) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
declare
    v_queue {schema}.queue;
begin
    select q.* into v_queue from {schema}.queue q where q.name = p_queue;
    if v_queue.paused_at is not null or (v_queue.max_running is not null and not v_queue.counted) then
        return 0;
    end if;
    return least(case when v_queue.rate_limit is not null
                      then (select p.free from {schema}.pace_of(p_queue, clock_timestamp()) p) end,
                 case when v_queue.max_running is not null
                      then greatest(0, v_queue.max_running - (select cardinality(h.ids) from {schema}.held_places(p_queue) h)) end);
end
$fn$;

-- hold_places: keep others from claiming from a queue with a limit until this transaction ends. Internal.
--
-- Returns  free: places that the caller may give away, 0 also where another claim, or whoever changes the
--          settings, has the queue: nobody waits here, since acks wait behind. How many the rate lets start
--          now, the caller asks pace_of. turn, ids, tokens: as held_places; null where the queue has a rate only.
-- Locks    the queue's row, SKIP LOCKED, and only where a look finds a free place: claims of a full queue
--          write nothing. The places are read after that in a statement of its own: a snapshot that was
--          taken before the lock may not show what the last holder of the lock has written.
create or replace function {schema}.hold_places(p_queue text)
returns table (free integer, turn bigint, ids bigint[], tokens bigint[])
language plpgsql as $fn$
#variable_conflict use_column
declare
    v_most integer;
    v_rate integer;
begin
    free := 0;
    if {schema}.free_places(p_queue) > 0 then
        select q.max_running, q.rate_limit into v_most, v_rate from {schema}.queue q
         where q.name = p_queue and q.paused_at is null and (q.counted or q.max_running is null)
           for no key update skip locked;
        if v_most is not null then
            select h.turn, h.ids, h.tokens into turn, ids, tokens from {schema}.held_places(p_queue) h;
            free := greatest(0, v_most - cardinality(ids));
        else
            free := coalesce(v_rate, 0);
        end if;
    end if;
    return next;
end
$fn$;

-- take_places: write who holds the places now. Internal; the caller holds them (hold_places).
create or replace function {schema}.take_places(p_queue text, p_turn bigint, p_ids bigint[], p_tokens bigint[]) returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $fn$
begin
    insert into {schema}.place (queue, turn, ids, tokens) values (p_queue, p_turn + 1, p_ids, p_tokens);
    delete from {schema}.place p where p.queue = p_queue and p.turn = p_turn;
end
$fn$;

-- await_claims: wait until every claim that is under way has ended. Later ones wait for this, so not long:
-- 55P03 after 200 ms, try again later. A transaction of its own: the lock goes with its end.
create or replace function {schema}.await_claims() returns void
language sql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' as $fn$
    select pg_advisory_xact_lock({schema}.claims_key())
$fn$;

-- running_of: what runs of a queue, p_most rows of the queue at a time, in the order of its lanes.
--
-- Params   priority, at, id: go on after this row; start with null.
-- Returns  one row: ids, tokens of runs; the row to go on after, priority null when the end was reached.
-- Index    job_lane.
create or replace function {schema}.running_of(p_queue text, p_priority smallint, p_at timestamptz, p_id bigint, p_most integer)
returns table (ids bigint[], tokens bigint[], priority smallint, at timestamptz, id bigint)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $fn$
#variable_conflict use_column
declare
    v_read integer;
begin
    with part as materialized (
        select j.id, j.claims, j.lease, j.priority, j.run_at from {schema}.job j
         where j.queue = p_queue
           and (j.priority, j.run_at, j.id + 0) > (coalesce(p_priority, '-32768'), coalesce(p_at, '-infinity'), coalesce(p_id, 0))
         order by j.queue, j.priority, j.run_at, j.id + 0 limit p_most)
    select count(*), coalesce(array_agg(part.id) filter (where part.lease is not null), '{}'),
           coalesce(array_agg(part.claims) filter (where part.lease is not null), '{}'),
           (array_agg(part.priority))[p_most], (array_agg(part.run_at))[p_most], (array_agg(part.id))[p_most]
      into v_read, ids, tokens, priority, at, id
      from part;
    return next;
end
$fn$;

-- count_queue: the runs of before a limit are these; claims may begin.
--
-- Params   p_at: limited_at of the limit that they were looked for under.
-- Returns  whether it was that limit still, and not counted yet.
create or replace function {schema}.count_queue(p_queue text, p_at timestamptz, p_ids bigint[], p_tokens bigint[]) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
begin
    update {schema}.queue q set counted = true where q.name = p_queue and q.limited_at = p_at and not q.counted;
    if not found then
        return false;
    end if;
    perform {schema}.take_places(p_queue, coalesce((select max(p.turn) from {schema}.place p where p.queue = p_queue), 0),
                                 p_ids, p_tokens);
    perform {schema}.tell_queue(p_queue);
    return true;
end
$fn$;
