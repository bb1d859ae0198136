-- Gates: jobs that wait for others (after), for their turn (ordering_key), for room (concurrency_key), for their
-- time (rate_key), in this order. A job that waits is out of every claim's way: its run_at is parked_at().
--
--   enqueue --parked, with a note--> gate 1..4 --pass_*--> the next gate, or let in: run_at is due_at or now --> claims
--   an end of a run --work()--> the next of its keys is let in at once, in the same transaction
--                   --else----> a note
--   pass_gates, by supervisors: takes the notes that are due, looks, lets in
--
-- What must hold   An enqueue locks no key and looks at nobody: a producer may keep its transaction open for long.
--                  Whoever lets in holds the key's lock (lock_keys), taken in an earlier statement than the look, and
--                  keeps it to its commit. The lock is tried and never waited for; who does not get it leaves a note
--                  in its own transaction. So nobody is stranded: a look that came too early to see an end, or a
--                  newcomer, is followed by the look that their note asks for.
--                  Who changes a row of gated, or takes a link of a waiting job away, holds that job's row. Whoever
--                  lets in skips rows that are locked, and leaves a note.
--                  Whoever changes a job and may delete it in the same transaction locks its row for update before.
--                  A weaker lock lets `for key share` pass on to the changed row, where the server waits for the
--                  delete, SKIP LOCKED or not: a look, or a waiter for a result, would wait for that transaction.
-- Notes            While somebody waits and could go, there is a note, or an end that is not committed yet.
-- Rights           of the caller, but where it says otherwise.

-- parked_at: the run_at of a job that waits at a gate. Finite, so that every driver can read it.
create or replace function {schema}.parked_at() returns timestamptz
language sql immutable as $fn$
    select '9999-12-31 00:00:00+00'::timestamptz
$fn$;

-- next_gate: the first gate after p_after that a job with these keys has; null when it has none. Internal.
create or replace function {schema}.next_gate(p_after integer, p_ordering_key text, p_concurrency_key text, p_rate_key text)
returns smallint
language sql immutable as $fn$
    select (case when p_after < 2 and p_ordering_key is not null then 2
                 when p_after < 3 and p_concurrency_key is not null then 3
                 when p_after < 4 and p_rate_key is not null then 4 end)::smallint
$fn$;

-- rate_step: the time between two starts of a rate_key. Internal.
create or replace function {schema}.rate_step(p_limit integer, p_period interval) returns interval
language sql immutable as $fn$
    select greatest(p_period / p_limit, interval '20 ms')
$fn$;

-- tell_gates: tell waiting supervisors that a gate is to be looked at, from p_at on. A release that does not know
-- "gate" takes it for a wake-up of a queue that it does not know.
create or replace function {schema}.tell_gates(p_at timestamptz) returns void
language plpgsql as $fn$
begin
    if exists (select from {schema}.waiting) then
        perform pg_notify({channel}, json_build_object(
            'queue', '', 'priorities', '[]'::json, 'at', extract(epoch from p_at), 'gate', true)::text);
    end if;
end
$fn$;

-- lock_keys: try to lock keys of a gate until the transaction ends.
--
-- Returns  those that were obtained. What they guard is looked at in a later statement.
create or replace function {schema}.lock_keys(p_gate integer, p_keys text[]) returns text[]
language sql as $fn$
    with tried as materialized (
        select k.key, pg_try_advisory_xact_lock(
                   hashtextextended('pg-supervisor gate ' || {schema_literal} || ' ' || p_gate || ' ' || k.key, 0)) as got
          from unnest(p_keys) as k (key))
    select coalesce(array_agg(t.key) filter (where t.got), '{}') from tried t
$fn$;

-- hold_row: lock the row of a job that may pass a gate. Internal.
--
-- Returns  whether that was done. A row that is locked is not waited for, but a note is left: whoever has it may undo
--          what it does.
create or replace function {schema}.hold_row(p_id bigint, p_gate integer, p_key text) returns boolean
language plpgsql as $fn$
begin
    perform from {schema}.job j where j.id = p_id for no key update skip locked;
    if found then
        return true;
    end if;
    insert into {schema}.gate_note (at, gate, key)
    select clock_timestamp() + interval '100 ms', p_gate, p_key
     where exists (select from {schema}.job j where j.id = p_id);
    return false;
end
$fn$;

-- advance: jobs have passed a gate: to the next that they have, with a note, or into the queue. Internal.
--
-- Params   p_ids: their rows are locked by the caller, and p_from's key too. Those not at p_from are left alone.
-- Returns  those let in; the caller wakes (tell_let_in).
create or replace function {schema}.advance(p_ids bigint[], p_from integer) returns bigint[]
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $fn$
declare
    v_now timestamptz := clock_timestamp();
    v_in  bigint[];
    v_due timestamptz[];
begin
    with moved as (
        update {schema}.gated g set gate = {schema}.next_gate(p_from, g.ordering_key, g.concurrency_key, g.rate_key)
         where g.job_id = any (p_ids) and g.gate = p_from
        returning g.job_id, g.gate, g.due_at, g.ordering_key, g.concurrency_key, g.rate_key),
    noted as (
        insert into {schema}.gate_note (at, gate, key)
        select case when m.gate = 2 then v_now else greatest(v_now, m.due_at) end, m.gate,
               case m.gate when 2 then m.ordering_key when 3 then m.concurrency_key else m.rate_key end
          from moved m where m.gate is not null)
    select array_agg(m.job_id), array_agg(m.due_at) into v_in, v_due from moved m where m.gate is null;
    if v_in is null then
        return '{}';
    end if;
    update {schema}.job j set run_at = greatest(v_now, v_due[array_position(v_in, j.id)])
     where j.id = any (v_in) and j.lease is null;
    return v_in;
end
$fn$;

-- tell_let_in: wake for jobs that were let in and that nobody has claimed meanwhile.
create or replace function {schema}.tell_let_in(p_ids bigint[]) returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $fn$
begin
    if p_ids <> '{}' and exists (select from {schema}.waiting) then
        perform {schema}.wake(j.queue, array_agg(distinct j.priority), min(j.run_at))
           from {schema}.job j where j.id = any (p_ids) and j.lease is null
          group by j.queue;
    end if;
end
$fn$;

-- pass_order: let the next of an ordering_key go on, if nobody has the key. The caller holds its lock.
--
-- Order    by id, among what is committed. Whoever has the key: let in, at a later gate, or dead and holding it.
-- Returns  ids let in, here and below. A row that is locked is waited for, by a note: another may not go before it.
-- Index    gated_order_held, gated_order_waiting, here; the like for the other gates.
create or replace function {schema}.pass_order(p_key text) returns bigint[]
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $fn$
declare
    v_id bigint;
begin
    select g.job_id into v_id from {schema}.gated g
     where g.ordering_key = p_key and g.gate = 2
       and not exists (
           select from {schema}.gated h
            where h.ordering_key = p_key and (h.gate is null or h.gate in (3, 4) or (h.gate = 9 and h.ordering_hold)))
     order by g.job_id limit 1;
    if v_id is null or not {schema}.hold_row(v_id, 2, p_key) then
        return '{}';
    end if;
    return {schema}.advance(array[v_id], 2);
end
$fn$;

-- pass_concurrency: let in as many of a concurrency_key as there is room for, each by its own limit; those due the
-- longest first. The caller holds the key's lock.
create or replace function {schema}.pass_concurrency(p_key text) returns bigint[]
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $fn$
declare
    v_now  timestamptz := clock_timestamp();
    v_held bigint;
    v_ids  bigint[] := '{}';
    r      record;
begin
    select count(*) into v_held from {schema}.gated g
     where g.concurrency_key = p_key and (g.gate is null or g.gate = 4);
    for r in
        select g.job_id, g.concurrency_limit from {schema}.gated g
         where g.concurrency_key = p_key and g.gate = 3 and g.due_at <= v_now
         order by g.due_at, g.job_id
    loop
        exit when v_held >= r.concurrency_limit;
        if cardinality(v_ids) >= 100 then
            insert into {schema}.gate_note (at, gate, key) values (clock_timestamp(), 3, p_key);
            exit;
        end if;
        if {schema}.hold_row(r.job_id, 3, p_key) then
            v_ids := v_ids || r.job_id;
            v_held := v_held + 1;
        end if;
    end loop;
    return case when v_ids = '{}' then v_ids else {schema}.advance(v_ids, 3) end;
end
$fn$;

-- pass_rate: let in the next of a rate_key if the last start is long enough ago. The caller holds the key's lock.
--
-- Starts   are claims, by the database's clock. One that was let in and is not claimed yet may start at any moment, so
--          nobody follows it. Runs that have ended have left their start in `rate`.
create or replace function {schema}.pass_rate(p_key text) returns bigint[]
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $fn$
declare
    v_now   timestamptz;
    v_last  timestamptz;
    v_open  boolean;
    v_again timestamptz;
    v_ids   bigint[] := '{}';
    r       record;
begin
    -- One statement for both: an end moves a start from the one to the other. A clock that was set back must not
    -- stop a key: what lies ahead of it is left out.
    select max(x.started_at) filter (where x.started_at <= clock_timestamp()), coalesce(bool_or(x.open), false)
      into v_last, v_open
      from (select s.started_at, false as open from {schema}.rate s where s.key = p_key
            union all
            select run.started_at, run.lease is null from {schema}.gated g
             cross join lateral (select j.started_at, j.lease from {schema}.job j where j.id = g.job_id offset 0) run
             where g.rate_key = p_key and g.gate is null) x;
    v_now := clock_timestamp();
    delete from {schema}.rate s where s.key = p_key and (s.started_at < v_last or s.started_at > v_now);
    for r in
        select g.job_id, {schema}.rate_step(g.rate_limit, g.rate_period) as step from {schema}.gated g
         where g.rate_key = p_key and g.gate = 4 and g.due_at <= v_now
         order by g.due_at, g.job_id
    loop
        if v_ids <> '{}' then
            v_again := v_now + r.step;
            exit;
        elsif v_open then
            v_again := v_now + greatest(r.step, interval '50 ms');
            exit;
        elsif v_last + r.step > v_now then
            v_again := v_last + r.step;
            exit;
        end if;
        if {schema}.hold_row(r.job_id, 4, p_key) then
            v_ids := array[r.job_id];
        end if;
    end loop;
    if v_again is not null then
        insert into {schema}.gate_note (at, gate, key) values (v_again, 4, p_key);
    end if;
    return case when v_ids = '{}' then v_ids else {schema}.advance(v_ids, 4) end;
end
$fn$;

-- cancel_child: a job that waited for another one will not run. Internal; the caller holds its row.
create or replace function {schema}.cancel_child(p_child bigint, p_why text) returns void
language plpgsql as $fn$
begin
    perform from {schema}.job j where j.id = p_child for update;
    update {schema}.job j
       set last_error = p_why,
           errors = {schema}.noted(j.errors, jsonb_build_object(
               'at', clock_timestamp(), 'event', 'cancelled', 'attempt', j.attempts, 'claims', j.claims, 'error', p_why))
     where j.id = p_child;
    perform {schema}.bury(p_child, 'cancelled', 'parent');
end
$fn$;

-- pass_parents: let a job go on if nothing that it waits for is left. The caller holds its lock.
--
-- Params   p_parents: those that have ended; null: any may have.
-- Parents  that are there still tell of their end. One whose end is under way may not have seen the link, so it is
--          looked at again. One that is neither there nor dead is done. A dead one holds, cancels or is passed
--          over, as the link says.
create or replace function {schema}.pass_parents(p_child bigint, p_parents bigint[]) returns bigint[]
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $fn$
declare
    v_again boolean := false;
    v_left  boolean := false;
    r       record;
begin
    if not {schema}.hold_row(p_child, 1, p_child::text)
       or not exists (select from {schema}.gated g where g.job_id = p_child and g.gate = 1) then
        return '{}';
    end if;
    -- One snapshot for both tables: a retry moves a parent from the one to the other.
    for r in
        select l.parent, l.failed, d.status
          from {schema}.job_after l
          left join lateral (select x.status from {schema}.dead_letter x where x.id = l.parent offset 0) d on true
          left join lateral (select true as there from {schema}.job j where j.id = l.parent offset 0) run on true
         where l.child = p_child and (p_parents is null or l.parent = any (p_parents)) and run.there is null
    loop
        if r.status is not null and r.failed = 'cancel' then
            perform {schema}.cancel_child(p_child, format('job %s, which this one waited for, is %s', r.parent, r.status));
            return '{}';
        elsif r.status is null or r.failed = 'run' then
            delete from {schema}.job_after l where l.parent = r.parent and l.child = p_child;
        end if;
    end loop;
    for r in select l.parent, l.failed from {schema}.job_after l where l.child = p_child loop
        perform from {schema}.job j where j.id = r.parent for key share skip locked;
        if found then
            return '{}';
        end if;
        if exists (select from {schema}.dead_letter d where d.id = r.parent) and r.failed = 'hold' then
            v_left := true;
        else
            v_again := true;  -- its end is under way, or has come since the look above
        end if;
    end loop;
    if v_again then
        insert into {schema}.gate_note (at, gate, key) values (clock_timestamp() + interval '100 ms', 1, p_child::text);
    end if;
    return case when v_again or v_left then '{}' else {schema}.advance(array[p_child], 1) end;
end
$fn$;

-- pass_notes: take notes that are due, look at their gates, let in whoever may go.
--
-- Params   p_from: read notes from this time on; whoever has read all before it saves the walk over what is left of
--          notes of before (an old snapshot keeps it). p_most: the most notes to take.
-- Returns  looked: notes taken; let_in: jobs let in; next_s: seconds to the next note, null without any; read_ms: how
--          long finding the notes took.
-- Locks    keys are tried; rows are skipped.
create or replace function {schema}.pass_notes(p_from timestamptz, p_most integer)
returns table (looked integer, let_in integer, next_s float8, read_ms float8)
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
    v_now   timestamptz := clock_timestamp();
    v_gates smallint[];
    v_notes text[];
    v_keys  text[];
    v_got   text[];
    v_in    bigint[] := '{}';
    v_key   text;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'letting jobs in needs READ COMMITTED, not %', current_setting('transaction_isolation') using errcode = 'QS002';
    end if;
    with due as materialized (
        select n.ctid as tid from {schema}.gate_note n
         where n.at >= p_from and n.at <= v_now
         order by n.at, n.id limit p_most
           for update skip locked),
    gone as (
        delete from {schema}.gate_note n using due where n.ctid = due.tid returning n.gate, n.key)
    select count(*), array_agg(gone.gate), array_agg(gone.key) into looked, v_gates, v_notes from gone;
    read_ms := extract(epoch from clock_timestamp() - v_now) * 1000;
    for v_gate in 1 .. 4 loop
        v_keys := array(
            select distinct split_part(n.key, ':', 1) from unnest(v_gates, v_notes) as n (gate, key) where n.gate = 1 and v_gate = 1
            union
            select n.key from unnest(v_gates, v_notes) as n (gate, key) where n.gate = v_gate and v_gate > 1);
        continue when v_keys = '{}';
        v_got := {schema}.lock_keys(v_gate, v_keys);
        if cardinality(v_got) < cardinality(v_keys) then
            insert into {schema}.gate_note (at, gate, key)
            select distinct clock_timestamp() + interval '100 ms', v_gate::smallint, n.key
              from unnest(v_gates, v_notes) as n (gate, key)
             where n.gate = v_gate and (case when v_gate = 1 then split_part(n.key, ':', 1) else n.key end) <> all (v_got);
        end if;
        foreach v_key in array v_got loop
            v_in := v_in || case v_gate
                when 1 then {schema}.pass_parents(v_key::bigint, (
                    select case when bool_and(n.key like '%:%') then array_agg(nullif(split_part(n.key, ':', 2), '')::bigint) end
                      from unnest(v_gates, v_notes) as n (gate, key)
                     where n.gate = 1 and split_part(n.key, ':', 1) = v_key))
                when 2 then {schema}.pass_order(v_key)
                when 3 then {schema}.pass_concurrency(v_key)
                else {schema}.pass_rate(v_key) end;
        end loop;
    end loop;
    perform {schema}.tell_let_in(v_in);
    let_in := cardinality(v_in);
    -- What this has added is stamped later than it began; what it has left for want of p_most not.
    select extract(epoch from n.at - clock_timestamp()) into next_s from {schema}.gate_note n
     where n.at >= case when looked < p_most then v_now else p_from end
     order by n.at, n.id limit 1;
    return next;
end
$fn$;

-- pass_gates: pass_notes for supervisors: any number may call it, one at a time works. Two would be in each other's
-- way: a key that one has is put off by the other.
--
-- Returns  as pass_notes; looked is -1 when another is at it.
create or replace function {schema}.pass_gates(p_from timestamptz, p_most integer)
returns table (looked integer, let_in integer, next_s float8, read_ms float8)
language plpgsql as $fn$
begin
    if pg_try_advisory_xact_lock(hashtextextended('pg-supervisor gates ' || {schema_literal}, 0)) then
        return query select * from {schema}.pass_notes(p_from, p_most);
    else
        return query select -1, 0, null::float8, null::float8;
    end if;
end
$fn$;

-- add_gated_many: jobs that were just inserted, with gated and parked_at(), stand at their first gates. Internal.
--
-- Params   p_jobs: their rows as they are to be; the gate is found here. p_children, p_parents, p_failed: who waits
--          for whom; a pair that comes twice counts once.
create or replace function {schema}.add_gated_many(
    p_jobs {schema}.gated[], p_children bigint[], p_parents bigint[], p_failed text[]
) returns void
language plpgsql as $fn$
declare
    v_at timestamptz;
begin
    insert into {schema}.job_after (parent, child, failed)
    select distinct on (l.parent, l.child) l.parent, l.child, coalesce(l.failed, 'hold')
      from unnest(p_children, p_parents, p_failed) as l (child, parent, failed);
    with added as (
        insert into {schema}.gated (job_id, gate, due_at, ordering_key, ordering_hold, concurrency_key, concurrency_limit,
                                    rate_key, rate_limit, rate_period)
        select g.job_id, case when g.job_id = any (p_children) then 1
                              else {schema}.next_gate(1, g.ordering_key, g.concurrency_key, g.rate_key) end,
               g.due_at, g.ordering_key, coalesce(g.ordering_hold, false), g.concurrency_key, g.concurrency_limit,
               g.rate_key, g.rate_limit, g.rate_period
          from unnest(p_jobs) as g
        returning job_id, gate, due_at, ordering_key, concurrency_key, rate_key),
    noted as (
        insert into {schema}.gate_note (at, gate, key)
        select case when a.gate < 3 then clock_timestamp() else greatest(clock_timestamp(), a.due_at) end, a.gate,
               case a.gate when 1 then a.job_id::text when 2 then a.ordering_key when 3 then a.concurrency_key else a.rate_key end
          from added a
        returning at)
    select min(n.at) into v_at from noted n;
    if v_at is not null then
        perform {schema}.tell_gates(v_at);
    end if;
end
$fn$;

-- add_gated: add_gated_many for one job. Internal.
create or replace function {schema}.add_gated(
    p_id bigint, p_due_at timestamptz, p_ordering_key text, p_ordering_hold boolean, p_concurrency_key text,
    p_concurrency_limit integer, p_rate_key text, p_rate_limit integer, p_rate_period interval, p_after bigint[], p_failed text
) returns void
language sql as $fn$
    select {schema}.add_gated_many(
        array[row(p_id, null, p_due_at, p_ordering_key, coalesce(p_ordering_hold, false), p_concurrency_key, p_concurrency_limit,
                  p_rate_key, p_rate_limit, p_rate_period)::{schema}.gated],
        array(select p_id from unnest(p_after)), coalesce(p_after, '{}'), array(select p_failed from unnest(p_after)))
$fn$;

-- freed: leave notes for keys that others may have now. Internal.
create or replace function {schema}.freed(p_orders text[], p_concurrencies text[]) returns void
language plpgsql as $fn$
begin
    insert into {schema}.gate_note (gate, key)
    select distinct 2, k.key from unnest(p_orders) as k (key) where k.key is not null
    union all
    select distinct 3, k.key from unnest(p_concurrencies) as k (key) where k.key is not null;
    if found then
        perform {schema}.tell_gates(clock_timestamp());
    end if;
end
$fn$;

-- ungate: a job waits for nothing any more and holds no key, since it becomes another. Internal; the caller holds
-- its row.
create or replace function {schema}.ungate(p_id bigint) returns void
language plpgsql as $fn$
declare
    v_orders        text[];
    v_concurrencies text[];
begin
    delete from {schema}.job_after l where l.child = p_id;
    with gone as (delete from {schema}.gated g where g.job_id = p_id returning g.ordering_key, g.concurrency_key)
    select array_agg(gone.ordering_key), array_agg(gone.concurrency_key) into v_orders, v_concurrencies from gone;
    perform {schema}.freed(v_orders, v_concurrencies);
end
$fn$;

-- enter_gates: jobs with a row in gated stand at their first gates anew, or are let in if they have none left. Internal.
-- The caller has inserted or locked them, parked.
create or replace function {schema}.enter_gates(p_ids bigint[]) returns void
language plpgsql as $fn$
declare
    v_now  timestamptz := clock_timestamp();
    v_free bigint[];
begin
    with entered as (
        update {schema}.gated g
           set due_at = v_now,
               gate = case when exists (select from {schema}.job_after l where l.child = g.job_id) then 1
                           else {schema}.next_gate(1, g.ordering_key, g.concurrency_key, g.rate_key) end
         where g.job_id = any (p_ids)
        returning g.job_id, g.gate, g.ordering_key, g.concurrency_key, g.rate_key),
    noted as (
        insert into {schema}.gate_note (at, gate, key)
        select v_now, e.gate,
               case e.gate when 1 then e.job_id::text when 2 then e.ordering_key when 3 then e.concurrency_key else e.rate_key end
          from entered e where e.gate is not null)
    select array_agg(e.job_id) filter (where e.gate is null) into v_free from entered e;
    if v_free is not null then
        update {schema}.job j set run_at = v_now where j.id = any (v_free);
        perform {schema}.tell_let_in(v_free);
    end if;
    perform {schema}.tell_gates(v_now);
end
$fn$;

-- run_started: a run of a rate_key has ended, or goes back: keep when it started. Internal.
create or replace function {schema}.run_started(p_id bigint, p_at timestamptz) returns void
language sql as $fn$
    insert into {schema}.rate (key, started_at, until)
    select g.rate_key, p_at, p_at + {schema}.rate_step(g.rate_limit, g.rate_period)
      from {schema}.gated g where g.job_id = p_id and g.rate_key is not null and p_at is not null
        on conflict do nothing
$fn$;

-- run_ended: jobs with gates are done: others may have their keys. Internal; the caller has deleted them.
--
-- Params   p_started: when each was claimed. p_hand_on: let the next ones in here and now; false where this
--          transaction may stay open for long, since it would keep the keys' locks.
-- Returns  ids let in; the caller wakes (tell_let_in).
-- Locks    keys are tried, at most 64 of each gate in a call: the server's table of locks is of one size.
create or replace function {schema}.run_ended(p_ids bigint[], p_started timestamptz[], p_hand_on boolean) returns bigint[]
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $fn$
declare
    v_orders        text[];
    v_concurrencies text[];
    v_mine          text[];
    v_room          text[];
    v_in            bigint[] := '{}';
    v_key           text;
begin
    with gone as (
        delete from {schema}.gated g where g.job_id = any (p_ids)
        returning g.job_id, g.ordering_key, g.concurrency_key, g.rate_key, g.rate_limit, g.rate_period),
    started as (
        insert into {schema}.rate (key, started_at, until)
        select x.rate_key, x.at, x.at + {schema}.rate_step(x.rate_limit, x.rate_period)
          from (select g.*, p_started[array_position(p_ids, g.job_id)] as at from gone g where g.rate_key is not null) x
         where x.at is not null
            on conflict do nothing)
    select array_agg(distinct g.ordering_key) filter (where g.ordering_key is not null),
           array_agg(distinct g.concurrency_key) filter (where g.concurrency_key is not null)
      into v_orders, v_concurrencies from gone g;
    if p_hand_on then
        v_mine := {schema}.lock_keys(2, v_orders[1:64]);
        v_room := {schema}.lock_keys(3, v_concurrencies[1:64]);
        foreach v_key in array v_mine loop
            v_in := v_in || {schema}.pass_order(v_key);
        end loop;
        foreach v_key in array v_room loop
            v_in := v_in || {schema}.pass_concurrency(v_key);
        end loop;
        v_orders := array(select k.key from unnest(v_orders) as k (key) where k.key <> all (v_mine));
        v_concurrencies := array(select k.key from unnest(v_concurrencies) as k (key) where k.key <> all (v_room));
    end if;
    if v_orders <> '{}' or v_concurrencies <> '{}' then
        perform {schema}.freed(v_orders, v_concurrencies);
    end if;
    return v_in;
end
$fn$;

-- parents_ended: jobs have left the queue; those that wait for them are looked at. Internal. Called in a statement
-- after the one that locked or deleted the rows: links that it cannot see were committed later than that, and whoever
-- looks at them meets the lock.
create or replace function {schema}.parents_ended(p_ids bigint[]) returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $fn$
begin
    insert into {schema}.gate_note (gate, key)
    select 1, l.child || ':' || l.parent from {schema}.job_after l where l.parent = any (p_ids);
    if found then
        perform {schema}.tell_gates(clock_timestamp());
    end if;
end
$fn$;

-- buried: a job with gates is dead or cancelled: it holds nothing, or its ordering_key until an operator has decided.
-- Internal; called by bury.
create or replace function {schema}.buried(p_id bigint, p_status text) returns void
language plpgsql as $fn$
declare
    v_gated {schema}.gated;
begin
    update {schema}.gated g set gate = case when p_status = 'dead' then 9 else 8 end
     where g.job_id = p_id
    returning g.* into v_gated;
    perform {schema}.freed(
        array[case when v_gated.gate = 8 or not v_gated.ordering_hold then v_gated.ordering_key end],
        array[v_gated.concurrency_key]);
end
$fn$;

-- go_back: a job with gates is queued again. One that comes later frees its place of a concurrency_key and waits for
-- one again; each start of a rate_key waits for its time. Internal; the caller holds the row, and has set its run_at.
--
-- Params   p_at: when it is due, where p_later says that it is a new time; else it keeps its old place.
create or replace function {schema}.go_back(p_id bigint, p_at timestamptz, p_later boolean) returns void
language plpgsql as $fn$
declare
    v_gated {schema}.gated;
    v_gate  smallint;
    v_due   timestamptz;
begin
    select g.* into v_gated from {schema}.gated g where g.job_id = p_id and g.gate is null;
    v_gate := case when p_later and v_gated.concurrency_key is not null then 3
                   when v_gated.rate_key is not null then 4 end;
    if v_gate is null then
        return;
    end if;
    v_due := case when p_later then p_at else v_gated.due_at end;
    update {schema}.gated g set gate = v_gate, due_at = v_due where g.job_id = p_id;
    update {schema}.job j set run_at = {schema}.parked_at() where j.id = p_id;
    insert into {schema}.gate_note (at, gate, key)
    values (greatest(clock_timestamp(), v_due), v_gate, case v_gate when 3 then v_gated.concurrency_key else v_gated.rate_key end);
    if v_gate = 3 then
        perform {schema}.freed(null, array[v_gated.concurrency_key]);
    end if;
    perform {schema}.tell_gates(greatest(clock_timestamp(), v_due));
end
$fn$;

-- set_due: another time for a job that waits, or that was let in and has not started. Internal; the caller holds the
-- row.
--
-- Returns  when it was due before; null for one that is let in and holds nothing that others wait for: its run_at
--          is the caller's to set.
create or replace function {schema}.set_due(p_id bigint, p_at timestamptz) returns timestamptz
language plpgsql as $fn$
declare
    v_gated {schema}.gated;
begin
    select g.* into v_gated from {schema}.gated g where g.job_id = p_id;
    if v_gated.gate is null then
        perform {schema}.go_back(p_id, p_at, true);
        return case when exists (select from {schema}.gated g where g.job_id = p_id and g.gate is not null) then v_gated.due_at end;
    end if;
    update {schema}.gated g set due_at = p_at where g.job_id = p_id;
    if v_gated.gate between 3 and 4 then
        insert into {schema}.gate_note (at, gate, key)
        values (greatest(clock_timestamp(), p_at), v_gated.gate,
                case v_gated.gate when 3 then v_gated.concurrency_key else v_gated.rate_key end);
        perform {schema}.tell_gates(greatest(clock_timestamp(), p_at));
    end if;
    return v_gated.due_at;
end
$fn$;

-- release_order: dead jobs no longer hold their ordering_key: the next ones go. An operator's word, for jobs that
-- are not to be retried.
--
-- Returns  the ids that held one.
-- Rights   its owner's, as retry_job.
create or replace function {schema}.release_order(p_ids bigint[]) returns setof bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
declare
    v_ids  bigint[];
    v_keys text[];
begin
    -- The dead letter's row first: who retries it takes that one first, too.
    perform from {schema}.dead_letter d where d.id = any (p_ids) order by d.id for update;
    with free as (
        update {schema}.gated g set ordering_hold = false
         where g.job_id = any (p_ids) and g.gate = 9 and g.ordering_hold and g.ordering_key is not null
        returning g.job_id, g.ordering_key)
    select array_agg(f.job_id order by f.job_id), array_agg(f.ordering_key) into v_ids, v_keys from free f;
    perform {schema}.freed(v_keys, null);
    return query select unnest(v_ids);
end
$fn$;

-- prune_gates: forget what gates need no more. Internal; called by prune.
--
-- Params   p_ids: jobs whose dead letters have just gone. p_limit: the most rows of each other kind.
create or replace function {schema}.prune_gates(p_ids bigint[], p_limit integer) returns bigint
language plpgsql as $fn$
declare
    v_keys  text[];
    v_total bigint;
    v_count bigint;
begin
    delete from {schema}.job_after l where l.child = any (p_ids);
    with gone as (delete from {schema}.gated g where g.job_id = any (p_ids) returning g.ordering_key, g.gate, g.ordering_hold)
    select array_agg(gone.ordering_key) filter (where gone.gate = 9 and gone.ordering_hold) into v_keys from gone;
    perform {schema}.freed(v_keys, null);
    delete from {schema}.rate s where s.ctid = any (array(
        select x.ctid from {schema}.rate x where x.until < clock_timestamp() - interval '1 minute'
         order by x.until limit p_limit for update skip locked));
    get diagnostics v_total = row_count;
    delete from {schema}.unique_hold u where u.unique_key = any (array(
        select x.unique_key from {schema}.unique_hold x
         where x.until < clock_timestamp() and not exists (select from {schema}.job j where j.id = x.job_id)
         order by x.until limit p_limit for update skip locked));
    get diagnostics v_count = row_count;
    return v_total + v_count;
end
$fn$;

-- cancel_waiting: jobs that wait for dead ones which are about to be forgotten are cancelled: nobody could retry
-- what they wait for. Internal; called by prune, before it forgets. Links of rows that are locked stay.
create or replace function {schema}.cancel_waiting(p_before timestamptz, p_limit integer) returns void
language plpgsql as $fn$
declare
    r record;
begin
    if not exists (select from {schema}.job_after) then
        return;
    end if;
    for r in
        select l.parent, l.child, d.status
          from (select x.id, x.status from {schema}.dead_letter x where x.finished_at < p_before
                 order by x.finished_at limit p_limit) d
          join {schema}.job_after l on l.parent = d.id
    loop
        perform from {schema}.job j where j.id = r.child for no key update skip locked;
        if found then
            delete from {schema}.job_after l where l.parent = r.parent and l.child = r.child;
            if found and exists (select from {schema}.gated g where g.job_id = r.child and g.gate = 1) then
                perform {schema}.cancel_child(r.child, format('job %s, which this one waited for, was %s for so long '
                                                              'that it has been forgotten', r.parent, r.status));
            end if;
        elsif not exists (select from {schema}.job j where j.id = r.child) then
            delete from {schema}.job_after l where l.parent = r.parent and l.child = r.child;
        end if;
    end loop;
end
$fn$;
