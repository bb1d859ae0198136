-- enqueue: add one job, in the caller's transaction. The function for every language.
--
-- Params   kind; payload: a JSON object. run_at: a point in time, or delay: from now; neither means
--          now, and a time in the past means now. priority: -100..100, lower runs sooner.
--          unique_key: at most one queued or running job has it. on_conflict says what happens when
--          one does: skip (keep that job), replace (a queued one takes the new kind, payload, place
--          and limits; a running one is kept), raise.
-- Returns  one row: the id of the job that now stands for the call, and whether it was created.
-- Locks    a unique_key that another open transaction has just used is waited for: whether that
--          one commits decides who creates the job.
create or replace function {schema}.enqueue(
    kind         text,
    payload      jsonb       default '{}',
    queue        text        default 'default',
    priority     integer     default 0,
    run_at       timestamptz default null,
    delay        interval    default null,
    max_attempts integer     default 20,
    max_crashes  integer     default 3,
    timeout      interval    default null,
    unique_key   text        default null,
    on_conflict  text        default 'skip',
    headers      jsonb       default '{}'
) returns table (id bigint, created boolean)
language plpgsql set search_path = pg_catalog, pg_temp as $fn$
#variable_conflict use_column
declare
    v_now    timestamptz := clock_timestamp();
    v_run_at timestamptz := greatest(v_now, coalesce(enqueue.run_at, v_now + coalesce(enqueue.delay, '0')));
    v_id     bigint;
begin
    if enqueue.run_at is not null and enqueue.delay is not null then
        raise exception 'give run_at or delay, not both' using errcode = '22023';
    end if;
    if coalesce(enqueue.on_conflict, '') not in ('skip', 'replace', 'raise') then
        raise exception 'on_conflict is %, must be skip, replace or raise', coalesce(quote_literal(enqueue.on_conflict), 'null')
            using errcode = '22023';
    end if;
    if jsonb_typeof(enqueue.payload) is distinct from 'object' then
        raise exception 'payload must be a JSON object, not %', coalesce(jsonb_typeof(enqueue.payload), 'null')
            using errcode = '22023';
    end if;
    if jsonb_typeof(enqueue.headers) is distinct from 'object' then
        raise exception 'headers must be a JSON object, not %', coalesce(jsonb_typeof(enqueue.headers), 'null')
            using errcode = '22023';
    end if;
    if v_run_at = 'infinity' then
        raise exception 'run_at must be finite' using errcode = '22023';
    end if;
    -- Each round waits for whoever holds the key, then looks again; a holder that finishes between
    -- the insert and the look-up costs one more round.
    for attempt in 1 .. 100 loop
        insert into {schema}.job as j (kind, payload, queue, priority, run_at, created_at, max_attempts, max_crashes,
                                       timeout, unique_key, headers)
        values (enqueue.kind, enqueue.payload, coalesce(enqueue.queue, 'default'), coalesce(enqueue.priority, 0), v_run_at,
                v_now, coalesce(enqueue.max_attempts, 20), coalesce(enqueue.max_crashes, 3), enqueue.timeout,
                enqueue.unique_key, enqueue.headers)
        on conflict (unique_key) where unique_key is not null do nothing
        returning j.id into v_id;
        if found then
            return query select v_id, true;
            return;
        end if;
        if enqueue.on_conflict = 'raise' then
            select j.id into v_id from {schema}.job j where j.unique_key = enqueue.unique_key;
            raise exception 'a job with this unique_key is queued or running' using
                errcode = '23505', detail = format('job %s holds it', v_id),
                hint = 'on_conflict => ''skip'' returns that job''s id instead';
        elsif enqueue.on_conflict = 'replace' then
            update {schema}.job j
               set kind = enqueue.kind, payload = enqueue.payload, queue = coalesce(enqueue.queue, 'default'),
                   priority = coalesce(enqueue.priority, 0), run_at = v_run_at,
                   max_attempts = coalesce(enqueue.max_attempts, 20), max_crashes = coalesce(enqueue.max_crashes, 3),
                   timeout = enqueue.timeout, headers = enqueue.headers, attempts = 0, unknown_since = null
             where j.unique_key = enqueue.unique_key and j.lease is null
            returning j.id into v_id;
            if found then
                perform {schema}.wake(coalesce(enqueue.queue, 'default'), array[coalesce(enqueue.priority, 0)::smallint], v_run_at);
                return query select v_id, false;
                return;
            end if;
        end if;
        select j.id into v_id from {schema}.job j where j.unique_key = enqueue.unique_key;
        if found then
            return query select v_id, false;
            return;
        end if;
    end loop;
    raise exception 'unique_key changed hands 100 times during one enqueue' using errcode = '40001',
        hint = 'retry the transaction';
end
$fn$;

-- enqueue_many: add many jobs in one statement, with the meaning of as many single calls.
--
-- Params   jobs: a JSON array of objects with the names of enqueue's parameters; run_at as ISO text,
--          delay and timeout in seconds.
-- Returns  one row per element: ord (from 1), id, created.
-- Order    ids rise with the position in the array. Elements with a unique_key are inserted in the
--          order of their keys, so that two bulks with keys in common cannot deadlock.
create or replace function {schema}.enqueue_many(jobs jsonb) returns table (ord integer, id bigint, created boolean)
language plpgsql set search_path = pg_catalog, pg_temp as $fn$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    r     record;
begin
    if jsonb_typeof(enqueue_many.jobs) is distinct from 'array' then
        raise exception 'jobs must be a JSON array' using errcode = '22023';
    end if;
    if exists (select from jsonb_array_elements(enqueue_many.jobs) e
                where jsonb_typeof(e.value) <> 'object'
                   or jsonb_typeof(coalesce(e.value -> 'payload', '{}')) <> 'object'
                   or jsonb_typeof(coalesce(e.value -> 'headers', '{}')) <> 'object') then
        raise exception 'each job, its payload and its headers must be JSON objects' using errcode = '22023';
    end if;
    return query
    with plain as materialized (
        select e.ordinality::integer as ord, nextval(pg_get_serial_sequence({schema_literal} || '.job', 'id')) as id, x.*
          from jsonb_array_elements(enqueue_many.jobs) with ordinality as e (value, ordinality)
         cross join lateral jsonb_to_record(e.value) as x (
               kind text, payload jsonb, queue text, priority integer, run_at timestamptz, delay float8,
               max_attempts integer, max_crashes integer, timeout float8, headers jsonb)
         where e.value ->> 'unique_key' is null
         order by e.ordinality),
    inserted as (
        insert into {schema}.job (id, kind, payload, queue, priority, run_at, created_at, max_attempts, max_crashes, timeout, headers)
        select p.id, p.kind, coalesce(p.payload, '{}'), coalesce(p.queue, 'default'), coalesce(p.priority, 0),
               greatest(v_now, coalesce(p.run_at, v_now + make_interval(secs => coalesce(p.delay, 0)))), v_now,
               coalesce(p.max_attempts, 20), coalesce(p.max_crashes, 3), make_interval(secs => p.timeout), coalesce(p.headers, '{}')
          from plain p)
    select p.ord, p.id, true from plain p;
    for r in
        select e.ordinality::integer as ord, x.*
          from jsonb_array_elements(enqueue_many.jobs) with ordinality as e (value, ordinality)
         cross join lateral jsonb_to_record(e.value) as x (
               kind text, payload jsonb, queue text, priority integer, run_at timestamptz, delay float8,
               max_attempts integer, max_crashes integer, timeout float8, headers jsonb, unique_key text, on_conflict text)
         where x.unique_key is not null
         order by x.unique_key collate "C", e.ordinality
    loop
        return query
        select r.ord, q.id, q.created
          from {schema}.enqueue(r.kind, coalesce(r.payload, '{}'), r.queue, r.priority, r.run_at, make_interval(secs => r.delay),
                                r.max_attempts, r.max_crashes, make_interval(secs => r.timeout), r.unique_key,
                                coalesce(r.on_conflict, 'skip'), coalesce(r.headers, '{}')) q;
    end loop;
end
$fn$;
