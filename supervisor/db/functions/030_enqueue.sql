-- problem: what is wrong with a job that is to be added, in words; null when nothing is. Internal.
--
-- Inlined where it is used, so a bulk is checked in one pass; that takes ::text beside each ||, which for other
-- types is not immutable. The table's constraints say the same and are the last word for raw inserts, but their
-- errors quote the whole row, payload included.
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
            then 'queue must be 1 to 128 bytes long, not ' || octet_length(p_queue)::text
        when octet_length(p_unique_key) not between 1 and 1024
            then 'unique_key must be 1 to 1024 bytes long, not ' || octet_length(p_unique_key)::text
        when p_priority not between -100 and 100 then 'priority is ' || p_priority::text || ', must be -100 to 100'
        when p_max_attempts < 1 then 'max_attempts is ' || p_max_attempts::text || ', must be at least 1'
        when p_max_crashes < 1 then 'max_crashes is ' || p_max_crashes::text || ', must be at least 1'
        when p_timeout_s <= 0 or p_timeout_s = 'NaN' then 'timeout must be above 0'
    end
$fn$;

-- options_problem: the same for what else may be chosen: keys, limits, parents, for how long a key is taken. Internal.
--
-- Apart from problem, so that jobs which choose none of it are not asked. Inlined likewise.
create or replace function {schema}.options_problem(
    p_unique_key text, p_ordering_key text, p_on_dead text, p_concurrency_key text, p_concurrency_limit integer,
    p_rate_key text, p_rate_limit integer, p_rate_period_s float8, p_after bigint[], p_after_failed text,
    p_unique_for_s float8, p_unique_states text[]
) returns text
language sql immutable as $fn$
    select case
        when octet_length(p_ordering_key) not between 1 and 1024
            then 'ordering_key must be 1 to 1024 bytes long, not ' || octet_length(p_ordering_key)::text
        when p_on_dead not in ('next', 'hold') then 'on_dead is ' || quote_literal(p_on_dead) || ', must be next or hold'
        when p_on_dead = 'hold' and p_ordering_key is null then 'on_dead is given, and ordering_key is not'
        when octet_length(p_concurrency_key) not between 1 and 1024
            then 'concurrency_key must be 1 to 1024 bytes long, not ' || octet_length(p_concurrency_key)::text
        when p_concurrency_limit is null and p_concurrency_key is not null
            then 'concurrency_limit is not given, and concurrency_key is'
        when p_concurrency_key is null and p_concurrency_limit is not null
            then 'concurrency_key is not given, and concurrency_limit is'
        when p_concurrency_limit not between 1 and 10000
            then 'concurrency_limit is ' || p_concurrency_limit::text || ', must be 1 to 10000'
        when octet_length(p_rate_key) not between 1 and 1024
            then 'rate_key must be 1 to 1024 bytes long, not ' || octet_length(p_rate_key)::text
        when p_rate_key is null and p_rate_limit is not null then 'rate_key is not given, and rate_limit is'
        when p_rate_key is null and p_rate_period_s is not null then 'rate_key is not given, and rate_period is'
        when p_rate_limit is null and p_rate_key is not null then 'rate_limit is not given, and rate_key is'
        when p_rate_period_s is null and p_rate_key is not null then 'rate_period is not given, and rate_key is'
        when p_rate_limit not between 1 and 1000000 then 'rate_limit is ' || p_rate_limit::text || ', must be 1 to 1000000'
        when p_rate_period_s not between 1 and 31622400
            then 'rate_period is ' || p_rate_period_s::text || ' s, must be 1 second to 366 days'
        when p_rate_period_s / p_rate_limit < 0.02
            then 'rate_limit is ' || p_rate_limit::text || ' in ' || p_rate_period_s::text || ' s, must be one per 20 ms or less'
        when array_position(p_after, null) is not null then 'after must not hold null'
        when cardinality(p_after) > 1000 then 'after has ' || cardinality(p_after)::text || ' ids, must be at most 1000: use a batch'
        when p_after_failed not in ('hold', 'cancel', 'run')
            then 'after_failed is ' || quote_literal(p_after_failed) || ', must be hold, cancel or run'
        when p_unique_for_s is not null and p_unique_key is null then 'unique_for is given, and unique_key is not'
        when p_unique_for_s <= 0 or p_unique_for_s > 316224000 then 'unique_for must be above 0 and at most 3660 days'
        when p_unique_states is not null and p_unique_key is null then 'unique_states is given, and unique_key is not'
        when cardinality(p_unique_states) = 0 or not p_unique_states <@ array['queued', 'running', 'done', 'dead', 'cancelled']
            then 'unique_states must be one or more of queued, running, done, dead, cancelled'
        when p_unique_for_s is null and not p_unique_states <@ array['queued', 'running']
            then 'unique_for is not given, and unique_states has one that ends never'
    end
$fn$;

-- parents_problem: what is wrong with the jobs that another one is to come after; null when nothing is. Internal.
--
-- An id that was never given out is refused; one that has ended is fine.
create or replace function {schema}.parents_problem(p_after bigint[]) returns text
language sql as $fn$
    select 'after: no job has the id ' || a.id
      from (select distinct unnest(p_after) as id) a
     cross join (select case when s.is_called then s.last_value else 0 end as last from {schema}.job_id_seq s) s
     where a.id < 1 or a.id > s.last and not exists (select from {schema}.job j where j.id = a.id)
     order by a.id limit 1
$fn$;

-- circle_problem: whether a job that exists would wait for itself; null when not. Internal.
--
-- A walk up the links from p_after. It ends at 10,000 jobs beyond those: what cannot be said is refused.
create or replace function {schema}.circle_problem(p_id bigint, p_after bigint[]) returns text
language sql as $fn$
    with recursive up (id) as (
        select unnest(p_after)
         union
        select l.parent from {schema}.job_after l join up on l.child = up.id),
    walked as materialized (
        select up.id from up limit 10001 + cardinality(p_after))
    select case when bool_or(w.id = p_id) then 'after: job ' || p_id || ' would wait for itself'
                when count(*) > 10000 + cardinality(p_after) then 'after: more than 10000 jobs stand before these' end
      from walked w
$fn$;

-- after_problem: what is wrong with the parents of jobs that are to be added, before anything is: for clients whose
-- transaction is to survive a refusal.
--
-- Params   jobs: a JSON array of objects with after, unique_key and on_conflict, as enqueue_many takes them.
-- Returns  a row for each job with a problem: ord (from 1), problem.
create or replace function {schema}.after_problem(jobs jsonb) returns table (ord integer, problem text)
language sql security definer set search_path = pg_catalog, pg_temp as $fn$
    select w.ord, w.problem
      from (select e.ordinality::integer as ord,
                   coalesce({schema}.parents_problem(x.after),
                            (select {schema}.circle_problem(j.id, x.after)
                               from (select j.id from {schema}.job j where j.unique_key = x.unique_key
                                      union
                                     select h.job_id from {schema}.unique_hold h where h.unique_key = x.unique_key) j
                              where x.on_conflict = 'replace'
                                and exists (select from {schema}.job q where q.id = j.id and q.lease is null)
                              limit 1)) as problem
              from jsonb_array_elements(after_problem.jobs) with ordinality as e (value, ordinality)
             cross join lateral jsonb_to_record(e.value) as x (after bigint[], unique_key text, on_conflict text)
             where cardinality(x.after) > 0) w
     where w.problem is not null
     order by w.ord
$fn$;

-- order_links: let one transaction at a time give parents to jobs that others may have as theirs: two that do not see
-- each other's links could close a circle. Internal; before any key is taken.
create or replace function {schema}.order_links() returns void
language sql as $fn$
    select pg_advisory_xact_lock(hashtextextended('pg-supervisor links ' || {schema_literal}, 0))
$fn$;

-- key_holder: the job that a row of unique_hold keeps a key for, and its state; none when the key is free. Internal.
create or replace function {schema}.key_holder(p_key text) returns table (id bigint, state text)
language sql stable as $fn$
    select h.job_id, s.state
      from {schema}.unique_hold h
     cross join lateral (
           select coalesce(
               (select case when j.lease is null then 'queued' else 'running' end from {schema}.job j where j.id = h.job_id),
               (select d.status from {schema}.dead_letter d where d.id = h.job_id),
               'done') as state) s
     where h.unique_key = p_key and s.state = any (h.states)
       and (s.state in ('queued', 'running') or h.until > clock_timestamp())
$fn$;

-- key_of: a queued job's unique key, wherever it stands. Whoever locks several locks in this order, as bulks do. Internal.
create or replace function {schema}.key_of(p_id bigint, p_key text) returns text
language sql stable as $fn$
    select coalesce(p_key, (select h.unique_key from {schema}.unique_hold h where h.job_id = p_id)) collate "C"
$fn$;

-- add_keyed: add one job with a unique_key, or find the one that has it. Internal; a replacement wakes nobody.
--
-- A key is held in two places. A job whose states are queued and running has it in its own row, under a unique
-- index. What is held otherwise, for a time or in other states, stands in unique_hold; but whoever takes a key
-- enters the index first, if only for this transaction, and looks at unique_hold after that. So of two
-- transactions with one key the second waits for the first and then sees what it did.
--
-- Each round looks at unique_hold, which spares most an insert in vain, tries the index, looks again, then at the
-- job that has the key; when that one ends in between, the key is tried anew.
-- Params   p_id: an id for the new job; null: the next one. p_run_at: when it is due. p_keep, p_states: unique_for,
--          unique_states. p_gated: whether it has gates: p_gate (its id and gate count for nothing), p_after, p_failed.
-- Returns  one row: the id of the job that stands for the call, whether it was created, whether replaced.
create or replace function {schema}.add_keyed(
    p_id bigint, p_kind text, p_payload jsonb, p_queue text, p_priority integer, p_run_at timestamptz, p_now timestamptz,
    p_max_attempts integer, p_max_crashes integer, p_timeout interval, p_unique_key text, p_on_conflict text, p_headers jsonb,
    p_keep interval, p_states text[], p_gated boolean, p_gate {schema}.gated, p_after bigint[], p_failed text
) returns table (id bigint, created boolean, replaced boolean)
language plpgsql as $fn$
#variable_conflict use_column
declare
    v_row_holds boolean := p_states is null or p_states @> array['queued', 'running'];
    v_held      boolean := p_keep is not null or not v_row_holds;
    v_run_at    timestamptz := case when p_gated then {schema}.parked_at() else p_run_at end;
    v_id        bigint := p_id;
    v_other     bigint;
    v_state     text;
    v_key       text;  -- as it stands in the other's row
    v_ungate    boolean;
    v_problem   text;
begin
    created := false;
    replaced := false;
    for attempt in 1 .. 100 loop
        v_other := null;
        if exists (select from {schema}.unique_hold h where h.unique_key = p_unique_key) then
            select h.id, h.state into v_other, v_state from {schema}.key_holder(p_unique_key) h;
        end if;
        if v_other is null then
            v_id := coalesce(v_id, nextval('{schema}.job_id_seq'));
            insert into {schema}.job (id, kind, payload, queue, priority, run_at, created_at, max_attempts, max_crashes, timeout,
                                      unique_key, headers, gated)
            values (v_id, p_kind, p_payload, p_queue, p_priority, v_run_at, p_now, p_max_attempts, p_max_crashes, p_timeout,
                    p_unique_key, p_headers, nullif(p_gated, false))
            on conflict (unique_key) where unique_key is not null do nothing;
            if found then
                if not v_held and current_setting('transaction_isolation') <> 'read committed' then
                    -- An old snapshot does not show the row; this fails for it.
                    insert into {schema}.unique_hold (unique_key, job_id, until, states) values (p_unique_key, v_id, p_now, '{}')
                    on conflict (unique_key) do nothing;
                    delete from {schema}.unique_hold h where h.unique_key = p_unique_key and h.job_id = v_id;
                end if;
                if exists (select from {schema}.unique_hold h where h.unique_key = p_unique_key) then
                    select h.id, h.state into v_other, v_state from {schema}.key_holder(p_unique_key) h;
                end if;
                if v_other is null then
                    if v_held then
                        perform {schema}.hold_key(p_unique_key, v_id, p_now, p_keep, p_states);
                    end if;
                    if not v_row_holds then
                        update {schema}.job j set unique_key = null where j.id = v_id;
                    end if;
                    if p_gated then
                        perform {schema}.add_gated(
                            v_id, p_run_at, p_gate.ordering_key, p_gate.ordering_hold, p_gate.concurrency_key,
                            p_gate.concurrency_limit, p_gate.rate_key, p_gate.rate_limit, p_gate.rate_period, p_after, p_failed);
                    end if;
                    id := v_id;
                    created := true;
                    return next;
                    return;
                end if;
                delete from {schema}.job j where j.id = v_id;
            end if;
        end if;

        if v_other is null then
            select j.id, case when j.lease is null then 'queued' else 'running' end into v_other, v_state
              from {schema}.job j where j.unique_key = p_unique_key;
            continue when not found;
        end if;
        if p_on_conflict = 'replace' and v_state = 'queued' then
            select j.id, j.unique_key, j.gated into id, v_key, v_ungate from {schema}.job j
             where j.id = v_other and j.lease is null
               for update skip locked;  -- not less: 046_gate.sql says why
            if not found then
                -- Somebody is at it: another producer, or a claim. Having waited for a claim leaves a lock on
                -- the running job, for which its ack would wait until this transaction ends, however long
                -- that takes. Undoing the block lets it go.
                begin
                    select j.id, j.unique_key, j.gated into id, v_key, v_ungate from {schema}.job j
                     where j.id = v_other and j.lease is null
                       for update;
                    if not found then
                        raise exception 'claimed' using errcode = 'QS003';
                    end if;
                exception when sqlstate 'QS003' then
                    continue;
                end;
            end if;
            -- It may have another key's row by now, or none: whoever was at it has replaced it too.
            continue when v_key is distinct from p_unique_key
                      and not exists (select from {schema}.key_holder(p_unique_key) h where h.id = v_other);
            v_problem := case when cardinality(p_after) > 0 then {schema}.circle_problem(v_other, p_after) end;
            if v_problem is not null then
                raise exception '%', v_problem using errcode = '22023';
            end if;
            if v_key is null and v_row_holds then
                begin
                    update {schema}.job j set unique_key = p_unique_key where j.id = v_other;
                exception when unique_violation then
                    continue;
                end;
            end if;
            if v_ungate then
                perform {schema}.ungate(v_other);
            end if;
            -- Another job under the old one's id: it is not charged for what that one did.
            update {schema}.job j
               set kind = p_kind, payload = p_payload, queue = p_queue, priority = p_priority, run_at = v_run_at,
                   max_attempts = p_max_attempts, max_crashes = p_max_crashes, timeout = p_timeout, headers = p_headers,
                   attempts = 0, crashes = 0, suspect = false, unknown_since = null, gated = nullif(p_gated, false),
                   unique_key = case when v_row_holds then p_unique_key end
             where j.id = v_other;
            if v_held then
                perform {schema}.hold_key(p_unique_key, v_other, p_now, p_keep, p_states);
            else
                delete from {schema}.unique_hold h where h.unique_key = p_unique_key and h.job_id = v_other;
            end if;
            if p_gated then
                perform {schema}.add_gated(
                    v_other, p_run_at, p_gate.ordering_key, p_gate.ordering_hold, p_gate.concurrency_key,
                    p_gate.concurrency_limit, p_gate.rate_key, p_gate.rate_limit, p_gate.rate_period, p_after, p_failed);
            end if;
            id := v_other;
            replaced := true;
            return next;
            return;
        end if;
        if p_on_conflict = 'raise' then
            raise exception 'a job with this unique_key is %', case when v_state in ('queued', 'running') then 'queued or running'
                                                                    else v_state || ', and it is taken for some time' end
                using errcode = '23505', detail = format('job %s holds it', v_other),
                      hint = 'on_conflict => ''skip'' returns that job''s id instead';
        end if;
        id := v_other;
        return next;
        return;
    end loop;
    raise exception 'unique_key changed hands 100 times during one enqueue' using errcode = '40001',
        hint = 'retry the transaction';
end
$fn$;

drop function if exists {schema}.add_keyed(text, jsonb, text, integer, timestamptz, timestamptz, integer, integer, interval, text, text, jsonb);

-- hold_key: write down for whom, until when and in which states a key is taken. Internal; its taker is in the index.
create or replace function {schema}.hold_key(p_key text, p_id bigint, p_now timestamptz, p_keep interval, p_states text[])
returns void
language sql as $fn$
    insert into {schema}.unique_hold as h (unique_key, job_id, until, states)
    values (p_key, p_id, p_now + coalesce(p_keep, '0'), coalesce(p_states, array['queued', 'running', 'done']))
        on conflict (unique_key) do update
       set job_id = excluded.job_id, until = excluded.until, states = excluded.states
$fn$;

-- prune_holds: forget keys that are no longer taken, in a short batch. Internal, for prune.
--
-- What has outlived its time counts in queued and running only: while a job is so, the row stays, without the
-- states that it has ended for, and is looked at again later. Where the job's own row has the key, it goes.
create or replace function {schema}.prune_holds(p_limit integer) returns bigint
language plpgsql as $fn$
declare
    v_count bigint;
begin
    with old as materialized (
        select x.unique_key, array(select s from unnest(x.states) s where s in ('queued', 'running')) as living,
               exists (select from {schema}.job j where j.id = x.job_id and j.unique_key is null) as needed
          from {schema}.unique_hold x
         where x.until < clock_timestamp()
         order by x.until limit p_limit
           for update skip locked),
    gone as (
        delete from {schema}.unique_hold h using old
         where h.unique_key = old.unique_key and (old.living = '{}' or not old.needed)),
    kept as (
        update {schema}.unique_hold h set states = old.living, until = clock_timestamp() + interval '10 minutes' from old
         where h.unique_key = old.unique_key and old.living <> '{}' and old.needed)
    select count(*) into v_count from old;
    return v_count;
end
$fn$;

-- enqueue: add one job, in the caller's transaction. The function for every language.
--
-- Params   kind; payload: a JSON object. run_at: a point in time, or delay: from now; neither means
--          now, and a time in the past means now. priority: -100..100, lower runs sooner.
--          unique_key: at most one queued or running job has it. on_conflict says what happens when
--          one does: skip (keep that job), replace (a queued one takes the new kind, payload, place
--          and limits; a running or ended one is kept), raise.
--          unique_states: the states in which a job has its key, of queued, running, done, dead, cancelled;
--          usually the first two, with unique_for the first three. unique_for: how long, from the enqueue, an
--          ended job has it.
--          ordering_key: jobs of a key run one at a time, in the order of ids; on_dead: whether a dead one lets the
--          next run, or holds them.
--          concurrency_key, concurrency_limit: at most so many of a key are let run at a time.
--          rate_key, rate_limit, rate_period: at most so many of a key start in any such period, evenly.
--          after: ids of jobs that must be done first; after_failed: what when one is dead or cancelled: hold (wait
--          for its retry), cancel, run.
-- Returns  one row: the id of the job that now stands for the call, and whether it was created.
-- Locks    a unique_key that another open transaction has just used is waited for: whether that
--          one commits decides who creates the job. No other key is locked. A replacement that has parents waits
--          for others like it.
-- Rights   its owner's, in the caller's transaction: a producer needs EXECUTE and no right to any table.
create or replace function {schema}.enqueue(
    kind              text,
    payload           jsonb       default '{}',
    queue             text        default 'default',
    priority          integer     default 0,
    run_at            timestamptz default null,
    delay             interval    default null,
    max_attempts      integer     default 20,
    max_crashes       integer     default 3,
    timeout           interval    default null,
    unique_key        text        default null,
    on_conflict       text        default 'skip',
    headers           jsonb       default '{}',
    ordering_key      text        default null,
    on_dead           text        default 'next',
    concurrency_key   text        default null,
    concurrency_limit integer     default null,
    rate_key          text        default null,
    rate_limit        integer     default null,
    rate_period       interval    default null,
    after             bigint[]    default null,
    after_failed      text        default 'hold',
    unique_for        interval    default null,
    unique_states     text[]      default null
) returns table (id bigint, created boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
#variable_conflict use_column
declare
    v_now      timestamptz;
    v_run_at   timestamptz;
    v_queue    text;
    v_priority integer;
    v_attempts integer;
    v_crashes  integer;
    v_problem  text;
    v_more     boolean;
    v_gated    boolean := false;
    v_gate     {schema}.gated;
    v_replaced boolean;
begin
    -- Most jobs choose next to nothing. Every step of an expression is made ready anew in each transaction, so these
    -- are asked with few of them, and for no more than a plain row needs. What looks wrong here, or is null, is
    -- looked at more closely below.
    if num_nonnulls(enqueue.run_at, enqueue.delay, enqueue.timeout, enqueue.unique_key, enqueue.ordering_key, enqueue.concurrency_key,
                    enqueue.concurrency_limit, enqueue.rate_key, enqueue.rate_limit, enqueue.rate_period, enqueue.after,
                    enqueue.unique_for, enqueue.unique_states) = 0
       and array[enqueue.on_conflict, enqueue.on_dead, enqueue.after_failed, jsonb_typeof(enqueue.payload), jsonb_typeof(enqueue.headers)]
           = '{skip,next,hold,object,object}'
       and 1 <= all (array[octet_length(enqueue.kind), octet_length(enqueue.queue), enqueue.max_attempts, enqueue.max_crashes])
       and 128 >= all (array[octet_length(enqueue.kind), octet_length(enqueue.queue)])
       and enqueue.priority between -100 and 100 then
        insert into {schema}.job as j (kind, payload, queue, priority, max_attempts, max_crashes, headers)
        values (enqueue.kind, enqueue.payload, enqueue.queue, enqueue.priority, enqueue.max_attempts, enqueue.max_crashes, enqueue.headers)
        returning j.id into id;
        created := true;
        return next;
        return;
    end if;

    v_now := clock_timestamp();
    v_run_at := greatest(v_now, coalesce(enqueue.run_at, v_now + coalesce(enqueue.delay, '0')));
    v_queue := coalesce(enqueue.queue, 'default');
    v_priority := coalesce(enqueue.priority, 0);
    v_attempts := coalesce(enqueue.max_attempts, 20);
    v_crashes := coalesce(enqueue.max_crashes, 3);
    v_problem := {schema}.problem(
        enqueue.kind, enqueue.payload, v_queue, v_priority, v_run_at, enqueue.run_at is not null and enqueue.delay is not null,
        v_attempts, v_crashes, extract(epoch from enqueue.timeout)::float8, enqueue.unique_key, enqueue.on_conflict,
        enqueue.headers);
    v_more := num_nonnulls(
        enqueue.ordering_key, nullif(enqueue.on_dead, 'next'), enqueue.concurrency_key, enqueue.concurrency_limit, enqueue.rate_key,
        enqueue.rate_limit, enqueue.rate_period, enqueue.after, nullif(enqueue.after_failed, 'hold'), enqueue.unique_for,
        enqueue.unique_states) > 0;
    if v_more and v_problem is null then
        v_problem := coalesce(
            {schema}.options_problem(
                enqueue.unique_key, enqueue.ordering_key, enqueue.on_dead, enqueue.concurrency_key, enqueue.concurrency_limit,
                enqueue.rate_key, enqueue.rate_limit, extract(epoch from enqueue.rate_period)::float8, enqueue.after,
                enqueue.after_failed, extract(epoch from enqueue.unique_for)::float8, enqueue.unique_states),
            case when enqueue.after is not null then {schema}.parents_problem(enqueue.after) end);
    end if;
    if v_problem is not null then
        raise exception '%', v_problem using errcode = '22023';
    end if;
    if v_more then
        v_gated := num_nonnulls(enqueue.ordering_key, enqueue.concurrency_key, enqueue.rate_key) > 0
                   or coalesce(cardinality(enqueue.after), 0) > 0;
        v_gate := row(null, null, v_run_at, enqueue.ordering_key, coalesce(enqueue.on_dead = 'hold', false), enqueue.concurrency_key,
                      enqueue.concurrency_limit, enqueue.rate_key, enqueue.rate_limit, enqueue.rate_period);
    end if;
    if enqueue.unique_key is null then
        insert into {schema}.job as j (kind, payload, queue, priority, run_at, created_at, max_attempts, max_crashes, timeout, headers,
                                       gated)
        values (enqueue.kind, enqueue.payload, v_queue, v_priority, case when v_gated then {schema}.parked_at() else v_run_at end, v_now,
                v_attempts, v_crashes, enqueue.timeout, enqueue.headers, nullif(v_gated, false))
        returning j.id into id;
        if v_gated then
            perform {schema}.add_gated(
                id, v_run_at, v_gate.ordering_key, v_gate.ordering_hold, v_gate.concurrency_key, v_gate.concurrency_limit,
                v_gate.rate_key, v_gate.rate_limit, v_gate.rate_period, enqueue.after, enqueue.after_failed);
        end if;
        created := true;
        return next;
        return;
    end if;
    if enqueue.on_conflict = 'replace' and cardinality(enqueue.after) > 0 then
        perform {schema}.order_links();
    end if;
    select x.id, x.created, x.replaced into id, created, v_replaced
      from {schema}.add_keyed(null, enqueue.kind, enqueue.payload, v_queue, v_priority, v_run_at, v_now, v_attempts, v_crashes,
                              enqueue.timeout, enqueue.unique_key, enqueue.on_conflict, enqueue.headers,
                              enqueue.unique_for, enqueue.unique_states, v_gated, v_gate, enqueue.after, enqueue.after_failed) x;
    if v_replaced and not v_gated then
        perform {schema}.wake(v_queue, array[v_priority::smallint], v_run_at);
    end if;
    return next;
end
$fn$;

-- The form of before, with 12 parameters: beside the one above no call would say which is meant. Those who had been
-- given the right to it keep that.
do $$
declare
    v_old regprocedure := to_regprocedure({schema_literal} || '.enqueue(text, jsonb, text, integer, timestamptz, interval, integer, integer, interval, text, text, jsonb)');
    v_new regprocedure;
    v_acl aclitem[];
    r     record;
begin
    if v_old is null then
        return;
    end if;
    select p.oid into v_new from pg_catalog.pg_proc p
     where p.pronamespace = {schema_literal}::regnamespace and p.proname = 'enqueue' and p.oid <> v_old;
    select p.proacl into v_acl from pg_catalog.pg_proc p where p.oid = v_old;
    if v_acl is not null then
        execute format('revoke all on function %s from public', v_new);
        for r in select a.grantee, a.is_grantable from aclexplode(v_acl) a where a.privilege_type = 'EXECUTE' loop
            execute format('grant execute on function %s to %s%s', v_new,
                           case when r.grantee = 0 then 'public' else r.grantee::regrole::text end,
                           case when r.is_grantable and r.grantee <> 0 then ' with grant option' else '' end);
        end loop;
    end if;
    execute format('drop function %s', v_old);
end
$$;

-- enqueue_many: add many jobs in one statement, with the meaning of as many single calls.
--
-- Params   jobs: a JSON array of objects with the names of enqueue's parameters; run_at as ISO text;
--          delay, timeout, rate_period and unique_for in seconds; after an array of ids.
-- Returns  one row per element: ord (from 1), id, created.
-- Order    ids rise with the position in the array. Elements with a unique_key are added after the others, one
--          by one, in the order of their keys: two bulks with keys in common then cannot deadlock.
-- Sends    at most one notification per queue, and one for gates.
-- Rights   as enqueue.
create or replace function {schema}.enqueue_many(jobs jsonb) returns table (ord integer, id bigint, created boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
#variable_conflict use_column
declare
    -- Whoever names one of these is looked at more closely; the others need not pay for that.
    c_more       constant text[] := array['ordering_key', 'on_dead', 'concurrency_key', 'concurrency_limit', 'rate_key', 'rate_limit',
                                          'rate_period', 'after', 'after_failed', 'unique_for', 'unique_states'];
    v_now        timestamptz := clock_timestamp();
    v_problem    text;
    v_more       boolean;
    v_after      bigint[];
    v_ids        bigint[];
    v_gates      {schema}.gated[];
    v_children   bigint[];
    v_parents    bigint[];
    v_failed     text[];
    v_gated      boolean;
    v_gate       {schema}.gated;
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
    if v_problem is null
       and not exists (select from jsonb_array_elements(enqueue_many.jobs) as e (value) where e.value ?| (c_more || 'unique_key'::text)) then
        -- Plain rows, all of them: one statement, and its trigger tells whom it concerns.
        return query
        with added as (
            insert into {schema}.job as j (kind, payload, queue, priority, run_at, created_at, max_attempts, max_crashes, timeout, headers)
            select x.kind, coalesce(x.payload, '{}'), coalesce(x.queue, 'default'), coalesce(x.priority, 0),
                   greatest(v_now, coalesce(x.run_at, v_now + make_interval(secs => coalesce(x.delay, 0)))), v_now,
                   coalesce(x.max_attempts, 20), coalesce(x.max_crashes, 3), make_interval(secs => x.timeout), coalesce(x.headers, '{}')
              from jsonb_array_elements(enqueue_many.jobs) with ordinality as e (value, ordinality)
             cross join lateral jsonb_to_record(e.value) as x (
                   kind text, payload jsonb, queue text, priority integer, run_at timestamptz, delay float8,
                   max_attempts integer, max_crashes integer, timeout float8, headers jsonb)
             order by e.ordinality
            returning j.id)
        select (row_number() over (order by a.id))::integer, a.id, true from added a;
        return;
    end if;
    v_more := v_problem is null and exists (select from jsonb_array_elements(enqueue_many.jobs) as e (value) where e.value ?| c_more);
    if v_more then
        select format('job %s: %s', p.ord, p.problem) into v_problem from (
            select e.ordinality as ord,
                   {schema}.options_problem(
                       x.unique_key, x.ordering_key, x.on_dead, x.concurrency_key, x.concurrency_limit, x.rate_key, x.rate_limit,
                       x.rate_period, x.after, x.after_failed, x.unique_for, x.unique_states) as problem
              from jsonb_array_elements(enqueue_many.jobs) with ordinality as e (value, ordinality)
             cross join lateral jsonb_to_record(e.value) as x (
                   unique_key text, ordering_key text, on_dead text, concurrency_key text, concurrency_limit integer, rate_key text,
                   rate_limit integer, rate_period float8, after bigint[], after_failed text, unique_for float8, unique_states text[])
             where e.value ?| c_more) p
         where p.problem is not null
         order by p.ord limit 1;
        if v_problem is null then
            select array_agg(distinct a.id) into v_after
              from jsonb_array_elements(enqueue_many.jobs) as e (value)
             cross join lateral jsonb_to_record(e.value) as x (after bigint[])
             cross join lateral unnest(x.after) as a (id);
            v_problem := case when v_after is not null then {schema}.parents_problem(v_after) end;
        end if;
    end if;
    if v_problem is not null then
        raise exception '%', v_problem using errcode = '22023';
    end if;
    if v_after is not null and exists (
        select from jsonb_array_elements(enqueue_many.jobs) as e (value)
         where e.value ->> 'unique_key' is not null and e.value ->> 'on_conflict' = 'replace' and e.value ->> 'after' <> '[]') then
        perform {schema}.order_links();
    end if;

    -- The trigger is silenced until the end, when each queue is told once. A failure takes this back too.
    perform set_config('pg_supervisor.quiet', 'on', true);
    v_ids := array(select nextval('{schema}.job_id_seq') from generate_series(1, jsonb_array_length(enqueue_many.jobs)));
    return query
    with plain as materialized (
        select e.ordinality::integer as ord, v_ids[e.ordinality] as id,
               v_more and {schema}.names_gate(e.value) as gated, x.*
          from jsonb_array_elements(enqueue_many.jobs) with ordinality as e (value, ordinality)
         cross join lateral jsonb_to_record(e.value) as x (
               kind text, payload jsonb, queue text, priority integer, run_at timestamptz, delay float8,
               max_attempts integer, max_crashes integer, timeout float8, headers jsonb)
         where e.value ->> 'unique_key' is null
         order by e.ordinality),
    inserted as (
        insert into {schema}.job (id, kind, payload, queue, priority, run_at, created_at, max_attempts, max_crashes, timeout, headers, gated)
        select p.id, p.kind, coalesce(p.payload, '{}'), coalesce(p.queue, 'default'), coalesce(p.priority, 0),
               case when p.gated then {schema}.parked_at()
                    else greatest(v_now, coalesce(p.run_at, v_now + make_interval(secs => coalesce(p.delay, 0)))) end, v_now,
               coalesce(p.max_attempts, 20), coalesce(p.max_crashes, 3), make_interval(secs => p.timeout), coalesce(p.headers, '{}'),
               nullif(p.gated, false)
          from plain p)
    select p.ord, p.id, true from plain p;
    select coalesce(array_agg(w.queue), '{}'), coalesce(array_agg(w.priority), '{}'), coalesce(array_agg(w.at), '{}')
      into v_queues, v_priorities, v_at
      from (select coalesce(x.queue, 'default') as queue, coalesce(x.priority, 0)::smallint as priority,
                   min(greatest(v_now, coalesce(x.run_at, v_now + make_interval(secs => coalesce(x.delay, 0))))) as at
              from jsonb_array_elements(enqueue_many.jobs) as e (value)
             cross join lateral jsonb_to_record(e.value) as x (queue text, priority integer, run_at timestamptz, delay float8)
             where e.value ->> 'unique_key' is null and not (v_more and {schema}.names_gate(e.value))
             group by 1, 2) w;
    if v_more then
        select array_agg(row(v_ids[e.ordinality], null,
                             greatest(v_now, coalesce(x.run_at, v_now + make_interval(secs => coalesce(x.delay, 0)))),
                             x.ordering_key, coalesce(x.on_dead = 'hold', false), x.concurrency_key, x.concurrency_limit,
                             x.rate_key, x.rate_limit, make_interval(secs => x.rate_period))::{schema}.gated order by e.ordinality)
          into v_gates
          from jsonb_array_elements(enqueue_many.jobs) with ordinality as e (value, ordinality)
         cross join lateral jsonb_to_record(e.value) as x (
               run_at timestamptz, delay float8, ordering_key text, on_dead text, concurrency_key text, concurrency_limit integer,
               rate_key text, rate_limit integer, rate_period float8)
         where e.value ->> 'unique_key' is null and {schema}.names_gate(e.value);
        if v_gates is not null then
            select coalesce(array_agg(l.child), '{}'), coalesce(array_agg(l.parent), '{}'), coalesce(array_agg(l.failed), '{}')
              into v_children, v_parents, v_failed
              from (select distinct v_ids[e.ordinality] as child, a.id as parent, coalesce(x.after_failed, 'hold') as failed
                      from jsonb_array_elements(enqueue_many.jobs) with ordinality as e (value, ordinality)
                     cross join lateral jsonb_to_record(e.value) as x (after bigint[], after_failed text)
                     cross join lateral unnest(x.after) as a (id)
                     where e.value ->> 'unique_key' is null) l;
            perform {schema}.add_gated_many(v_gates, v_children, v_parents, v_failed);
        end if;
    end if;

    for r in
        select e.ordinality::integer as ord, v_more and {schema}.names_gate(e.value) as gated, x.*
          from jsonb_array_elements(enqueue_many.jobs) with ordinality as e (value, ordinality)
         cross join lateral jsonb_to_record(e.value) as x (
               kind text, payload jsonb, queue text, priority integer, run_at timestamptz, delay float8,
               max_attempts integer, max_crashes integer, timeout float8, headers jsonb, unique_key text, on_conflict text,
               ordering_key text, on_dead text, concurrency_key text, concurrency_limit integer, rate_key text, rate_limit integer,
               rate_period float8, after bigint[], after_failed text, unique_for float8, unique_states text[])
         where x.unique_key is not null
         order by x.unique_key collate "C", e.ordinality
    loop
        r.run_at := greatest(v_now, coalesce(r.run_at, v_now + make_interval(secs => coalesce(r.delay, 0))));
        ord := r.ord;
        if r.gated then
            v_gate := row(null, null, r.run_at, r.ordering_key, coalesce(r.on_dead = 'hold', false), r.concurrency_key,
                          r.concurrency_limit, r.rate_key, r.rate_limit, make_interval(secs => r.rate_period));
        end if;
        select x.id, x.created, x.replaced into id, created, v_replaced
          from {schema}.add_keyed(v_ids[r.ord], r.kind, coalesce(r.payload, '{}'), coalesce(r.queue, 'default'), coalesce(r.priority, 0),
                                  r.run_at, v_now, coalesce(r.max_attempts, 20), coalesce(r.max_crashes, 3),
                                  make_interval(secs => r.timeout), r.unique_key, coalesce(r.on_conflict, 'skip'), coalesce(r.headers, '{}'),
                                  make_interval(secs => r.unique_for), r.unique_states, r.gated, v_gate, r.after, r.after_failed) x;
        if (created or v_replaced) and not r.gated then
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

-- names_gate: whether an element of a bulk has to wait at a gate. Internal.
create or replace function {schema}.names_gate(p_job jsonb) returns boolean
language sql immutable as $fn$
    select p_job ->> 'ordering_key' is not null or p_job ->> 'concurrency_key' is not null or p_job ->> 'rate_key' is not null
        or coalesce(p_job ->> 'after', '[]') <> '[]'
$fn$;

-- enqueue_batch: add jobs, and one more that runs when all of them have ended.
--
-- Params   jobs: as enqueue_many takes them; may be empty. callback: one job, likewise; its after_failed is run
--          unless it says otherwise, its own after is heeded as well. parents: ids of jobs of the batch that were
--          added before, any number.
-- Returns  one row per element of jobs, as enqueue_many; and one with ord 0: the callback.
-- Rights   as enqueue.
create or replace function {schema}.enqueue_batch(jobs jsonb, callback jsonb, parents bigint[] default '{}')
returns table (ord integer, id bigint, created boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
#variable_conflict use_column
declare
    v_now      timestamptz := clock_timestamp();
    v_problem  text;
    v_after    bigint[] := coalesce(enqueue_batch.parents, '{}');
    v_run_at   timestamptz;
    v_gated    boolean;
    v_gate     {schema}.gated;
    v_replaced boolean;
    c          record;
begin
    if jsonb_typeof(enqueue_batch.callback) is distinct from 'object' then
        raise exception 'callback must be a JSON object, not %', coalesce(jsonb_typeof(enqueue_batch.callback), 'null') using errcode = '22023';
    end if;
    select x.* into c
      from jsonb_to_record(enqueue_batch.callback) as x (
           kind text, payload jsonb, queue text, priority integer, run_at timestamptz, delay float8,
           max_attempts integer, max_crashes integer, timeout float8, headers jsonb, unique_key text, on_conflict text,
           ordering_key text, on_dead text, concurrency_key text, concurrency_limit integer, rate_key text, rate_limit integer,
           rate_period float8, after bigint[], after_failed text, unique_for float8, unique_states text[]);
    v_run_at := greatest(v_now, coalesce(c.run_at, v_now + make_interval(secs => coalesce(c.delay, 0))));
    v_problem := coalesce(
        {schema}.problem(c.kind, coalesce(enqueue_batch.callback -> 'payload', '{}'), c.queue, c.priority, v_run_at,
                         c.run_at is not null and c.delay is not null, c.max_attempts, c.max_crashes, c.timeout, c.unique_key,
                         coalesce(c.on_conflict, 'skip'), coalesce(enqueue_batch.callback -> 'headers', '{}')),
        {schema}.options_problem(c.unique_key, c.ordering_key, c.on_dead, c.concurrency_key, c.concurrency_limit, c.rate_key,
                                 c.rate_limit, c.rate_period, c.after, c.after_failed, c.unique_for, c.unique_states),
        {schema}.parents_problem(c.after));
    if v_problem is not null then
        raise exception 'callback: %', v_problem using errcode = '22023';
    end if;
    v_problem := case when array_position(v_after, null) is not null then 'parents must not hold null'
                      else replace({schema}.parents_problem(v_after), 'after:', 'parents:') end;
    if v_problem is not null then
        raise exception '%', v_problem using errcode = '22023';
    end if;
    if c.unique_key is not null and c.on_conflict = 'replace' then
        perform {schema}.order_links();
    end if;

    v_after := v_after || coalesce(c.after, '{}');
    for ord, id, created in select m.ord, m.id, m.created from {schema}.enqueue_many(enqueue_batch.jobs) m loop
        v_after := v_after || id;
        return next;
    end loop;
    v_gated := num_nonnulls(c.ordering_key, c.concurrency_key, c.rate_key) > 0 or v_after <> '{}';
    v_gate := row(null, null, v_run_at, c.ordering_key, coalesce(c.on_dead = 'hold', false), c.concurrency_key, c.concurrency_limit,
                  c.rate_key, c.rate_limit, make_interval(secs => c.rate_period));
    c.after_failed := coalesce(c.after_failed, 'run');
    ord := 0;
    if c.unique_key is null then
        insert into {schema}.job as j (kind, payload, queue, priority, run_at, created_at, max_attempts, max_crashes, timeout, headers, gated)
        values (c.kind, coalesce(c.payload, '{}'), coalesce(c.queue, 'default'), coalesce(c.priority, 0),
                case when v_gated then {schema}.parked_at() else v_run_at end, v_now, coalesce(c.max_attempts, 20),
                coalesce(c.max_crashes, 3), make_interval(secs => c.timeout), coalesce(c.headers, '{}'), nullif(v_gated, false))
        returning j.id into id;
        created := true;
        if v_gated then
            perform {schema}.add_gated(id, v_run_at, v_gate.ordering_key, v_gate.ordering_hold, v_gate.concurrency_key,
                                       v_gate.concurrency_limit, v_gate.rate_key, v_gate.rate_limit, v_gate.rate_period,
                                       v_after, c.after_failed);
        end if;
    else
        select x.id, x.created, x.replaced into id, created, v_replaced
          from {schema}.add_keyed(null, c.kind, coalesce(c.payload, '{}'), coalesce(c.queue, 'default'), coalesce(c.priority, 0),
                                  v_run_at, v_now, coalesce(c.max_attempts, 20), coalesce(c.max_crashes, 3),
                                  make_interval(secs => c.timeout), c.unique_key, coalesce(c.on_conflict, 'skip'), coalesce(c.headers, '{}'),
                                  make_interval(secs => c.unique_for), c.unique_states, v_gated, v_gate, v_after, c.after_failed) x;
        if v_replaced and not v_gated then
            perform {schema}.wake(coalesce(c.queue, 'default'), array[coalesce(c.priority, 0)::smallint], v_run_at);
        end if;
    end if;
    return next;
end
$fn$;
