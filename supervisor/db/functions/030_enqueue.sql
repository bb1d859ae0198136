-- problem: what is wrong with a job that is to be added, in words; null when nothing is. Internal.
--
-- Inlined where it is used, so a bulk is checked in one pass. The table's constraints say the same and
-- are the last word for raw inserts, but their errors quote the whole row, payload included.
create or replace function {schema}.problem(
    p_kind text, p_payload jsonb, p_queue text, p_priority integer, p_run_at timestamptz, p_both boolean,
    p_max_attempts integer, p_max_crashes integer, p_timeout_s float8, p_unique_key text, p_on_conflict text, p_headers jsonb
) returns text
language sql immutable as $fn$
    select case
        when p_both then 'give run_at or delay, not both'
        when p_on_conflict is null or p_on_conflict not in ('skip', 'replace', 'raise')
            then 'on_conflict is ' || coalesce(quote_literal(p_on_conflict), 'null') || ', must be skip, replace or raise'
        when jsonb_typeof(p_payload) is distinct from 'object'
            then 'payload must be a JSON object, not ' || coalesce(jsonb_typeof(p_payload), 'null')
        when jsonb_typeof(p_headers) is distinct from 'object'
            then 'headers must be a JSON object, not ' || coalesce(jsonb_typeof(p_headers), 'null')
        when p_run_at = 'infinity' then 'run_at must be finite'
        when p_run_at > '9999-12-31 00:00:00+00' then 'run_at must be before the year 10000'
        when p_kind is null or octet_length(p_kind) not between 1 and 128
            then 'kind must be 1 to 128 bytes long, not ' || coalesce(octet_length(p_kind)::text, 'null')
        when octet_length(p_queue) not between 1 and 128
            then 'queue must be 1 to 128 bytes long, not ' || octet_length(p_queue)
        when octet_length(p_unique_key) not between 1 and 1024
            then 'unique_key must be 1 to 1024 bytes long, not ' || octet_length(p_unique_key)
        when p_priority not between -100 and 100 then 'priority is ' || p_priority || ', must be -100 to 100'
        when p_max_attempts < 1 then 'max_attempts is ' || p_max_attempts || ', must be at least 1'
        when p_max_crashes < 1 then 'max_crashes is ' || p_max_crashes || ', must be at least 1'
        when p_timeout_s <= 0 or p_timeout_s = 'NaN' then 'timeout must be above 0'
    end
$fn$;

-- add_keyed: add one job with a unique_key, or find the one that has it. Internal; a replacement wakes nobody.
--
-- Each round tries the key, then looks at the job that has it; when that one ends in between, the key is
-- tried anew. The insert waits for whoever has just used or freed the key in an open transaction.
-- Returns  one row: the id of the job that stands for the call, whether it was created, whether replaced.
create or replace function {schema}.add_keyed(
    p_kind text, p_payload jsonb, p_queue text, p_priority integer, p_run_at timestamptz, p_now timestamptz,
    p_max_attempts integer, p_max_crashes integer, p_timeout interval, p_unique_key text, p_on_conflict text, p_headers jsonb
) returns table (id bigint, created boolean, replaced boolean)
language plpgsql as $fn$
#variable_conflict use_column
declare
    v_id bigint;
begin
    created := false;
    replaced := false;
    for attempt in 1 .. 100 loop
        insert into {schema}.job as j (kind, payload, queue, priority, run_at, created_at, max_attempts, max_crashes, timeout,
                                       unique_key, headers)
        values (p_kind, p_payload, p_queue, p_priority, p_run_at, p_now, p_max_attempts, p_max_crashes, p_timeout,
                p_unique_key, p_headers)
        on conflict (unique_key) where unique_key is not null do nothing
        returning j.id into id;
        if found then
            created := true;
            return next;
            return;
        end if;
        if p_on_conflict = 'replace' then
            select j.id into v_id from {schema}.job j
             where j.unique_key = p_unique_key and j.lease is null
               for no key update skip locked;
            if not found and exists (select from {schema}.job j where j.unique_key = p_unique_key and j.lease is null) then
                -- Somebody is at it: another producer, or a claim. Having waited for a claim leaves a lock on
                -- the running job, for which its ack would wait until this transaction ends, however long
                -- that takes. Undoing the block lets it go.
                begin
                    select j.id into v_id from {schema}.job j
                     where j.unique_key = p_unique_key and j.lease is null
                       for no key update;
                    if not found then
                        raise exception 'claimed' using errcode = 'QS003';
                    end if;
                exception when sqlstate 'QS003' then
                    v_id := null;
                end;
            end if;
            if v_id is not null then
                -- Another job under the old one's id: it is not charged for what that one did.
                update {schema}.job j
                   set kind = p_kind, payload = p_payload, queue = p_queue, priority = p_priority, run_at = p_run_at,
                       max_attempts = p_max_attempts, max_crashes = p_max_crashes, timeout = p_timeout, headers = p_headers,
                       attempts = 0, crashes = 0, unknown_since = null
                 where j.id = v_id;
                id := v_id;
                replaced := true;
                return next;
                return;
            end if;
        end if;
        select j.id into id from {schema}.job j where j.unique_key = p_unique_key;
        if found then
            if p_on_conflict = 'raise' then
                raise exception 'a job with this unique_key is queued or running' using
                    errcode = '23505', detail = format('job %s holds it', id),
                    hint = 'on_conflict => ''skip'' returns that job''s id instead';
            end if;
            return next;
            return;
        end if;
    end loop;
    raise exception 'unique_key changed hands 100 times during one enqueue' using errcode = '40001',
        hint = 'retry the transaction';
end
$fn$;

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
-- Rights   its owner's, in the caller's transaction: a producer needs EXECUTE and no right to any table.
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
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
#variable_conflict use_column
declare
    v_now      timestamptz := clock_timestamp();
    v_run_at   timestamptz := greatest(v_now, coalesce(enqueue.run_at, v_now + coalesce(enqueue.delay, '0')));
    v_queue    text := coalesce(enqueue.queue, 'default');
    v_priority integer := coalesce(enqueue.priority, 0);
    v_attempts integer := coalesce(enqueue.max_attempts, 20);
    v_crashes  integer := coalesce(enqueue.max_crashes, 3);
    v_problem  text := {schema}.problem(
        enqueue.kind, enqueue.payload, v_queue, v_priority, v_run_at, enqueue.run_at is not null and enqueue.delay is not null,
        v_attempts, v_crashes, extract(epoch from enqueue.timeout)::float8, enqueue.unique_key, enqueue.on_conflict,
        enqueue.headers);
    v_replaced boolean;
begin
    if v_problem is not null then
        raise exception '%', v_problem using errcode = '22023';
    end if;
    if enqueue.unique_key is null then
        insert into {schema}.job as j (kind, payload, queue, priority, run_at, created_at, max_attempts, max_crashes, timeout, headers)
        values (enqueue.kind, enqueue.payload, v_queue, v_priority, v_run_at, v_now, v_attempts, v_crashes, enqueue.timeout,
                enqueue.headers)
        returning j.id into id;
        created := true;
        return next;
        return;
    end if;
    select x.id, x.created, x.replaced into id, created, v_replaced
      from {schema}.add_keyed(enqueue.kind, enqueue.payload, v_queue, v_priority, v_run_at, v_now, v_attempts, v_crashes,
                              enqueue.timeout, enqueue.unique_key, enqueue.on_conflict, enqueue.headers) x;
    if v_replaced then
        perform {schema}.wake(v_queue, array[v_priority::smallint], v_run_at);
    end if;
    return next;
end
$fn$;

-- enqueue_many: add many jobs in one statement, with the meaning of as many single calls.
--
-- Params   jobs: a JSON array of objects with the names of enqueue's parameters; run_at as ISO text,
--          delay and timeout in seconds.
-- Returns  one row per element: ord (from 1), id, created.
-- Order    ids of elements without a unique_key rise with the position in the array. Those with one are
--          added after them one by one, in the order of their keys: two bulks with keys in common then
--          cannot deadlock.
-- Sends    at most one notification per queue.
-- Rights   as enqueue.
create or replace function {schema}.enqueue_many(jobs jsonb) returns table (ord integer, id bigint, created boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
#variable_conflict use_column
declare
    v_now        timestamptz := clock_timestamp();
    v_problem    text;
    v_replaced   boolean;
    v_queues     text[] := '{}';  -- whom to wake for what, at the end
    v_priorities smallint[] := '{}';
    v_at         timestamptz[] := '{}';
    r            record;
begin
    if jsonb_typeof(enqueue_many.jobs) is distinct from 'array' then
        raise exception 'jobs must be a JSON array' using errcode = '22023';
    end if;
    select format('job %s must be a JSON object, not %s', e.ordinality, jsonb_typeof(e.value)) into v_problem
      from jsonb_array_elements(enqueue_many.jobs) with ordinality as e (value, ordinality)
     where jsonb_typeof(e.value) <> 'object'
     order by e.ordinality limit 1;
    if v_problem is null then
        select format('job %s: %s', p.ord, p.problem) into v_problem from (
            select e.ordinality as ord,
                   {schema}.problem(
                       x.kind, coalesce(e.value -> 'payload', '{}'), x.queue, x.priority,
                       coalesce(x.run_at, v_now + make_interval(secs => x.delay)), x.run_at is not null and x.delay is not null,
                       x.max_attempts, x.max_crashes, x.timeout, x.unique_key, coalesce(x.on_conflict, 'skip'),
                       coalesce(e.value -> 'headers', '{}')) as problem
              from jsonb_array_elements(enqueue_many.jobs) with ordinality as e (value, ordinality)
             cross join lateral jsonb_to_record(e.value) as x (
                   kind text, queue text, priority integer, run_at timestamptz, delay float8, max_attempts integer,
                   max_crashes integer, timeout float8, unique_key text, on_conflict text)) p
         where p.problem is not null
         order by p.ord limit 1;
    end if;
    if v_problem is not null then
        raise exception '%', v_problem using errcode = '22023';
    end if;

    -- The trigger is silenced until the end, when each queue is told once. A failure takes this back too.
    perform set_config('pg_supervisor.quiet', 'on', true);
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
    select coalesce(array_agg(w.queue), '{}'), coalesce(array_agg(w.priority), '{}'), coalesce(array_agg(w.at), '{}')
      into v_queues, v_priorities, v_at
      from (select coalesce(x.queue, 'default') as queue, coalesce(x.priority, 0)::smallint as priority,
                   min(greatest(v_now, coalesce(x.run_at, v_now + make_interval(secs => coalesce(x.delay, 0))))) as at
              from jsonb_array_elements(enqueue_many.jobs) as e (value)
             cross join lateral jsonb_to_record(e.value) as x (queue text, priority integer, run_at timestamptz, delay float8)
             where e.value ->> 'unique_key' is null
             group by 1, 2) w;

    for r in
        select e.ordinality::integer as ord, x.*
          from jsonb_array_elements(enqueue_many.jobs) with ordinality as e (value, ordinality)
         cross join lateral jsonb_to_record(e.value) as x (
               kind text, payload jsonb, queue text, priority integer, run_at timestamptz, delay float8,
               max_attempts integer, max_crashes integer, timeout float8, headers jsonb, unique_key text, on_conflict text)
         where x.unique_key is not null
         order by x.unique_key collate "C", e.ordinality
    loop
        r.run_at := greatest(v_now, coalesce(r.run_at, v_now + make_interval(secs => coalesce(r.delay, 0))));
        ord := r.ord;
        select x.id, x.created, x.replaced into id, created, v_replaced
          from {schema}.add_keyed(r.kind, coalesce(r.payload, '{}'), coalesce(r.queue, 'default'), coalesce(r.priority, 0), r.run_at,
                                  v_now, coalesce(r.max_attempts, 20), coalesce(r.max_crashes, 3),
                                  make_interval(secs => r.timeout), r.unique_key, coalesce(r.on_conflict, 'skip'), coalesce(r.headers, '{}')) x;
        if created or v_replaced then
            v_queues := v_queues || coalesce(r.queue, 'default');
            v_priorities := v_priorities || coalesce(r.priority, 0)::smallint;
            v_at := v_at || r.run_at;
        end if;
        return next;
    end loop;
    perform set_config('pg_supervisor.quiet', 'off', true);
    perform {schema}.wake(b.queue, array_agg(distinct b.priority), min(b.at))
       from unnest(v_queues, v_priorities, v_at) as b (queue, priority, at)
      group by b.queue;
end
$fn$;
