-- work: acknowledge finished jobs and claim the next ones, in one round trip and one commit.
--
-- Moves    running -> done for (ids, claims); queued -> running for up to p_limit jobs.
-- Params   p_session: the worker's session; it must be live, else SQLSTATE QS001 and nothing happens.
--          p_ids, p_claims, p_took: job ids, each once and ascending (a token is found by halving: looked
--          for one by one, hundreds of them cost more than the rest), their fencing tokens, seconds each
--          ran; one length.
--          p_keep: what history keeps of a finished job: 0 nothing, 1 its row without the payload,
--          2 all. p_queues, p_priorities, p_mark_at, p_mark_id: the lanes to claim from, best first,
--          with the low-water mark to scan from. p_limit: most jobs to claim; 0 claims none.
--          p_lookback: scan at least this far back from now: rows commit later than they are stamped.
--          p_hands: most jobs to claim of queues with a limit: such a job has a place from its claim on, so
--          it should start at once. p_tids: where each acknowledged row lies, as its claim said; null: not known.
-- Returns  one row per claimed job, lane by lane (lane = position in p_queues from 1), with its lane's new mark and where
--          its row lies now (tid);
--          then one control row (lane null; its other columns mean nothing) whose payload is {"acked", "lost", "short", "next", "now"}:
--          acks accepted, ids whose lease was lost, whether every lane was read to its end, seconds
--          to the next job that will be due or that its queue's rate lets start (null: none), the
--          database's clock in epoch seconds when the lanes were read: nothing that was stamped later can
--          have been seen. Where queues have settings (045_queue.sql) also "unread": the lanes that were
--          not read to their end, "short" notwithstanding; "limited": the queues asked for that have a
--          limit or a rate; "blocked": jobs are due that wait for a place, look again soon; "left": jobs
--          are due that have one, for want of hands. "marks": "lanes", "at", "ids": the new mark of each lane
--          that gave a job, as in the rows of its jobs (which releases before this one read).
-- Paused, limited   a paused queue's lanes are left out. Those of a limited one are claimed from by themselves,
--          while this transaction holds the queue's places. Other queues cost one look at an index that is
--          empty for most, and a shared lock (045_queue.sql says what for).
-- Gates    who is next for a key of an acknowledged job is let in before the claim, which may take it (046_gate.sql).
-- Cheap    claims of a few jobs are many, and somebody waits for most of them. Each expression of plpgsql costs about a
--          microsecond per call, whatever it computes: those that only acks, or only queues with settings, need are
--          evaluated only then, and what is for nobody is left as it was.
-- Locks    only rows that it takes; SKIP LOCKED steps over others'. Acks take theirs in the order of
--          ids, as settle and cancel_job do. Ack first, claim second, as separate statements: fused
--          into one they can deadlock.
-- Rows     an ack goes to the row itself: jobs of many queues lie apart, and then a descent of job_pkey for each was a
--          fifth of all that a job cost. A row that has moved since (cancelled, rewritten) is looked for by its id.
--          Nothing in that join can use an index, so it has one plan, whatever statistics say: the rows in the order given.
-- Index    job_pkey for acks of rows that have moved, job_lane for claims. The settings below pin the plans: statistics
--          that are missing or stale can never turn a claim into a scan or a sort. Acks by id join nothing: a join that
--          was planned while the table was empty read the whole index for each batch.
create or replace function {schema}.work(
    p_session    bigint,
    p_ids        bigint[],
    p_claims     bigint[],
    p_took       float8[],
    p_keep       integer,
    p_queues     text[],
    p_priorities smallint[],
    p_mark_at    timestamptz[],
    p_mark_id    bigint[],
    p_limit      integer,
    p_lookback   interval,
    p_hands      integer,
    p_tids       tid[]
) returns table (
    lane integer, id bigint, claims bigint, kind text, payload text, headers text, attempts integer, max_attempts integer,
    crashes integer, suspect boolean, timeout_s float8, created_at timestamptz, run_at timestamptz,
    mark_at timestamptz, mark_id bigint, tid tid
) language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_material = off
set jit = off
as $fn$
#variable_conflict use_column
declare
    v_now     timestamptz;
    v_floor   timestamptz;
    v_claimed integer := 0;
    v_queues  text[] := p_queues;          -- by lane; null: left out, its queue is paused
    v_first   integer := 1;                -- lanes first to last are claimed from in one statement,
    v_last    integer := cardinality(p_queues);
    v_room    integer := p_limit;          -- at most so many jobs
    v_next    timestamptz;
    v_marked  integer := 0;                -- the last lane that gave a job; with the marks of each:
    v_lanes   integer[];
    v_at      text[];
    v_at_id   bigint[];
    -- of acks
    v_acked   bigint[];
    v_rest    bigint[];                    -- those to be looked for by their ids; null: none
    v_lost    bigint[];
    v_gated   bigint[];                    -- of the acknowledged those that had gates
    v_started timestamptz[];               -- and when they were claimed
    v_let_in  bigint[];                    -- jobs that were let in after them
    -- of queues with settings
    v_set     text[];                      -- the queues asked for that have settings
    v_capped  text[];                      -- those of them with a limit
    v_rated   text[];                      -- those of them with a rate
    v_limited text[];                      -- by lane; its queue if that has a limit, else null
    v_queue   text;                        -- their queue, if it has a limit
    v_hands   integer;
    v_free    integer;                     -- places of v_queue that this call may give away; null: not asked for
    v_turn    bigint;                      -- null: it has a rate and no places
    v_held    bigint[];
    v_theirs  bigint[];
    v_ids     bigint[];
    v_tokens  bigint[];
    v_starts  integer;                     -- starts that the rate of v_queue allows; null: it has none
    v_when    timestamptz;                 -- when v_queue's rate lets more start; null: that is not what they wait for
    v_again   timestamptz;                 -- the first of these
    v_unread  integer[];
    v_blocked boolean;
    v_left    boolean;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'work needs READ COMMITTED, not %', current_setting('transaction_isolation') using errcode = 'QS002';
    end if;
    if p_ids = '{}' then
        -- Nothing that could wait comes between: one statement less, where somebody waits for the job.
        perform pg_advisory_xact_lock_shared({schema}.claims_key())
           from {schema}.session s where s.id = p_session and s.closed_at is null;
    else
        perform from {schema}.session s where s.id = p_session and s.closed_at is null;
    end if;
    if not found then
        raise exception 'session % is closed', p_session using errcode = 'QS001';
    end if;

    if p_ids <> '{}' then
        v_now := clock_timestamp();
        if p_tids is null then
            v_rest := p_ids;
        elsif p_keep = 0 then
            with gone as (
                delete from {schema}.job j
                 using unnest(p_ids, p_claims, p_took, p_tids) as a (id, claims, took, tid)
                 where j.ctid = a.tid and j.id - a.id = 0 and j.lease = p_session and j.claims = a.claims
                returning j.id, j.gated, j.started_at)
            select coalesce(array_agg(g.id), '{}'), array_agg(g.id) filter (where g.gated),
                   array_agg(g.started_at) filter (where g.gated)
              into v_acked, v_gated, v_started from gone g;
        else
            with gone as (
                delete from {schema}.job j
                 using unnest(p_ids, p_claims, p_took, p_tids) as a (id, claims, took, tid)
                 where j.ctid = a.tid and j.id - a.id = 0 and j.lease = p_session and j.claims = a.claims
                returning j.id, j.run_at, j.created_at, j.claims, j.attempts, j.max_attempts, j.crashes, j.max_crashes, j.priority,
                          j.queue, j.kind, j.unique_key, j.last_error, j.errors, case when p_keep > 1 then j.payload end as payload,
                          case when p_keep > 1 then j.headers end as headers, j.gated, j.started_at, a.took),
            kept as (
                insert into {schema}.history (id, finished_at, started_at, run_at, created_at, claims, attempts, max_attempts, crashes,
                                              max_crashes, priority, queue, kind, unique_key, last_error, errors, payload, headers)
                select g.id, v_now, v_now - make_interval(secs => g.took), g.run_at, g.created_at, g.claims, g.attempts, g.max_attempts,
                       g.crashes, g.max_crashes, (case when g.priority > 500 then g.priority - 1000 else g.priority end)::smallint, g.queue, g.kind, g.unique_key, g.last_error,
                       nullif(g.errors, '[]'), g.payload, g.headers
                  from gone g)
            select coalesce(array_agg(g.id), '{}'), array_agg(g.id) filter (where g.gated), array_agg(g.started_at) filter (where g.gated)
              into v_acked, v_gated, v_started from gone g;
        end if;
        if cardinality(v_acked) < cardinality(p_ids) then
            v_rest := array(select x from unnest(p_ids) x where x <> all (v_acked));
        end if;
        if v_rest is not null then
            with gone as (
                delete from {schema}.job j
                 where j.id = any (v_rest) and j.lease = p_session and j.claims = p_claims[width_bucket(j.id, p_ids)]
                returning j.id, j.run_at, j.created_at, j.claims, j.attempts, j.max_attempts, j.crashes, j.max_crashes, j.priority,
                          j.queue, j.kind, j.unique_key, j.last_error, j.errors, case when p_keep > 1 then j.payload end as payload,
                          case when p_keep > 1 then j.headers end as headers, j.gated, j.started_at,
                          p_took[width_bucket(j.id, p_ids)] as took),
            kept as (
                insert into {schema}.history (id, finished_at, started_at, run_at, created_at, claims, attempts, max_attempts, crashes,
                                              max_crashes, priority, queue, kind, unique_key, last_error, errors, payload, headers)
                select g.id, v_now, v_now - make_interval(secs => g.took), g.run_at, g.created_at, g.claims, g.attempts, g.max_attempts,
                       g.crashes, g.max_crashes, (case when g.priority > 500 then g.priority - 1000 else g.priority end)::smallint, g.queue, g.kind, g.unique_key, g.last_error,
                       nullif(g.errors, '[]'), g.payload, g.headers
                  from gone g where p_keep > 0)
            select v_acked || coalesce(array_agg(g.id), '{}'), v_gated || array_agg(g.id) filter (where g.gated),
                   v_started || array_agg(g.started_at) filter (where g.gated)
              into v_acked, v_gated, v_started from gone g;
        end if;
        if cardinality(v_acked) < cardinality(p_ids) then
            select array_agg(x) into v_lost from unnest(p_ids) x where x <> all (v_acked);
        end if;
        if exists (select from {schema}.job_after l where l.parent = any (v_acked)) then
            perform {schema}.parents_ended(v_acked);
        end if;
        if v_gated is not null then
            -- Only with a claim: a handler's own transaction may stay open after its ack.
            v_let_in := {schema}.run_ended(v_gated, v_started, p_limit > 0 and p_queues <> '{}');
        end if;
        if exists (select from {schema}.awaited a where a.until > v_now) then
            perform {schema}.tell_awaited(v_acked);
        end if;
        if p_limit > 0 then
            -- The lock before the look: whoever counts what runs waits for those that did not see the limit.
            perform pg_advisory_xact_lock_shared({schema}.claims_key());
        end if;
    end if;

    -- The acks may have waited for a lock, so the clock is read after them.
    v_now := clock_timestamp();
    v_floor := v_now - p_lookback;
    if p_limit > 0 then
        if exists (select from {schema}.queue) then  -- most have no settings at all, and need not look for each queue
            select array_agg(q.name), array_agg(q.name) filter (where q.paused_at is null),
                   array_agg(q.name) filter (where q.rate_limit is not null)
              into v_set, v_capped, v_rated
              from {schema}.queue q
             where q.name = any (p_queues)
               and (q.paused_at is not null or q.max_running is not null or q.rate_limit is not null);
        end if;
        if v_set is not null then
            select array_agg(case when l.queue <> all (v_set) or l.queue = any (v_capped) then l.queue end order by l.ord),
                   array_agg(case when l.queue = any (v_capped) then l.queue end order by l.ord)
              into v_queues, v_limited
              from unnest(p_queues) with ordinality as l (queue, ord);
            v_unread := array(select i from generate_subscripts(v_queues, 1) i where v_queues[i] is null);
            v_hands := p_hands;
            v_blocked := false;
            v_left := false;
        end if;
    end if;
    while v_room > 0 loop
        if v_set is not null then
            v_queue := v_limited[v_first];
            v_last := v_first;
            while v_last < cardinality(v_queues) and v_limited[v_last + 1] is not distinct from v_queue loop
                v_last := v_last + 1;
            end loop;
        end if;
        if v_queue is not null then
            v_ids := '{}';
            v_tokens := '{}';
            v_free := null;
            perform from unnest(p_priorities[v_first:v_last], p_mark_at[v_first:v_last], p_mark_id[v_first:v_last])
                         as l (priority, at, id)
              cross join lateral (
                    select from {schema}.job j
                     where j.queue = v_queue and j.priority = l.priority and j.lease is null and j.run_at <= v_now
                       and (j.run_at, j.id + 0) >= (case when l.at < v_floor then l.at else v_floor end,
                                                    case when l.at < v_floor then l.id else 0 end)
                     order by j.run_at, j.id + 0 limit 1) low
              limit 1;
            if not found then
                v_room := 0;
            elsif v_hands <= 0 then
                v_left := v_left or {schema}.free_places(v_queue) > 0;
                if v_queue = any (v_rated) then
                    v_again := least(v_again, {schema}.starts_again(v_queue, v_now));
                end if;
                v_room := 0;
                v_unread := v_unread || array(select generate_series(v_first, v_last));
            else
                v_starts := null;
                if v_queue = any (v_rated) then
                    select p.free, p.again into v_starts, v_when from {schema}.pace_of(v_queue, v_now) p;
                end if;
                if v_starts = 0 then
                    v_free := 0;
                else
                    select h.free, h.turn, h.ids, h.tokens into v_free, v_turn, v_held, v_theirs from {schema}.hold_places(v_queue) h;
                    if v_starts is not null and v_free > 0 then  -- asked again, now that nobody else takes any
                        v_free := least(v_free, (select p.free from {schema}.pace_of(v_queue, v_now) p));
                    end if;
                end if;
                v_room := least(v_room, v_hands, v_free);
            end if;
        end if;
        if v_room > 0 then
            for lane, id, claims, kind, payload, headers, attempts, max_attempts, crashes, suspect, timeout_s, created_at, run_at,
                mark_at, mark_id, tid in
                with picked as materialized (
                    select l.ord::integer + v_first - 1 as lane, low.run_at as mark_at, low.id as mark_id, due.tid
                      from unnest(v_queues[v_first:v_last], p_priorities[v_first:v_last], p_mark_at[v_first:v_last],
                                  p_mark_id[v_first:v_last]) with ordinality as l (queue, priority, at, id, ord)
                     -- The lane's mark: the lowest row visible as unclaimed, locked or not.
                     cross join lateral (
                           select j.run_at, j.id from {schema}.job j
                            where j.queue = l.queue and j.priority = l.priority and j.lease is null and j.run_at <= v_now
                              and (j.run_at, j.id + 0) >= (case when l.at < v_floor then l.at else v_floor end,
                                                           case when l.at < v_floor then l.id else 0 end)
                            order by j.run_at, j.id + 0 limit 1) low
                     cross join lateral (
                           select j.ctid as tid from {schema}.job j
                            where j.queue = l.queue and j.priority = l.priority and j.lease is null and j.run_at <= v_now
                              and (j.run_at, j.id + 0) >= (low.run_at, low.id)
                            order by j.run_at, j.id + 0 limit v_room
                              for no key update skip locked) due
                     limit v_room)
                update {schema}.job j
                   set lease = p_session, claims = j.claims + 1, attempts = j.attempts + 1, started_at = v_now
                  from picked p
                 where j.ctid = p.tid
                returning p.lane, j.id, j.claims, j.kind, j.payload::text, j.headers::text, j.attempts, j.max_attempts, j.crashes,
                          j.priority > 500, extract(epoch from j.timeout)::float8, j.created_at, j.run_at, p.mark_at, p.mark_id, j.ctid
            loop
                v_claimed := v_claimed + 1;
                if lane <> v_marked then
                    v_marked := lane;
                    v_lanes := v_lanes || lane;
                    v_at := v_at || to_char(mark_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US"+00"');
                    v_at_id := v_at_id || mark_id;
                end if;
                if v_queue is not null then
                    v_ids := v_ids || id;
                    v_tokens := v_tokens || claims;
                end if;
                return next;
            end loop;
        end if;
        exit when v_set is null;
        if v_queue is not null and v_free is not null then
            if v_ids <> '{}' then
                if v_turn is not null then
                    perform {schema}.take_places(v_queue, v_turn, v_held || v_ids, v_theirs || v_tokens);
                end if;
                if v_starts is not null then
                    perform {schema}.note_starts(v_queue, cardinality(v_ids), v_now);
                end if;
            end if;
            if cardinality(v_ids) >= v_room then
                v_unread := v_unread || array(select generate_series(v_first, v_last));
                if cardinality(v_ids) >= v_free then
                    if v_starts is distinct from 0 then
                        v_when := case when v_starts is not null then {schema}.starts_again(v_queue, v_now) end;
                    end if;
                    v_again := least(v_again, v_when);
                    v_blocked := v_blocked or v_when is null;
                elsif cardinality(v_ids) >= v_hands then
                    v_left := true;
                end if;
            end if;
            v_hands := v_hands - cardinality(v_ids);
        end if;
        v_first := v_last + 1;
        exit when v_first > cardinality(v_queues);
        v_room := p_limit - v_claimed;
    end loop;
    if v_claimed < p_limit then
        select min(soon.run_at) filter (where soon.run_at < {schema}.parked_at()) into v_next
          from unnest(v_queues, p_priorities) as l (queue, priority)
         cross join lateral (
               select j.run_at from {schema}.job j
                where j.queue = l.queue and j.priority = l.priority and j.lease is null and j.run_at > v_now
                order by j.run_at, j.id + 0 limit 1) soon;
    end if;

    if v_let_in is not null then
        perform {schema}.tell_let_in(v_let_in);
    end if;
    lane := null;
    payload := json_build_object(
        'acked', coalesce(cardinality(v_acked), 0),
        'lost', v_lost,
        'short', v_claimed < p_limit,
        'next', case when isfinite(least(v_next, v_again)) then extract(epoch from least(v_next, v_again) - clock_timestamp()) end,
        'now', extract(epoch from v_now),
        'unread', coalesce(v_unread, '{}'),
        'limited', v_capped,
        'blocked', coalesce(v_blocked, false),
        'left', coalesce(v_left, false),
        'marks', json_build_object('lanes', coalesce(v_lanes, '{}'), 'at', coalesce(v_at, '{}'), 'ids', coalesce(v_at_id, '{}')))::text;
    return next;
end
$fn$;

-- work, as the release before calls it: it does not know where rows lie.
create or replace function {schema}.work(
    p_session    bigint,
    p_ids        bigint[],
    p_claims     bigint[],
    p_took       float8[],
    p_keep       integer,
    p_queues     text[],
    p_priorities smallint[],
    p_mark_at    timestamptz[],
    p_mark_id    bigint[],
    p_limit      integer,
    p_lookback   interval,
    p_hands      integer
) returns table (
    lane integer, id bigint, claims bigint, kind text, payload text, headers text, attempts integer, max_attempts integer,
    crashes integer, suspect boolean, timeout_s float8, created_at timestamptz, run_at timestamptz,
    mark_at timestamptz, mark_id bigint
) language sql as $fn$
    select w.lane, w.id, w.claims, w.kind, w.payload, w.headers, w.attempts, w.max_attempts, w.crashes, w.suspect, w.timeout_s,
           w.created_at, w.run_at, w.mark_at, w.mark_id
      from {schema}.work(p_session, p_ids, p_claims, p_took, p_keep, p_queues, p_priorities, p_mark_at, p_mark_id, p_limit,
                         p_lookback, p_hands, null) w
$fn$;

-- work, as releases before that called it: with hands for all that it claims.
create or replace function {schema}.work(
    p_session    bigint,
    p_ids        bigint[],
    p_claims     bigint[],
    p_took       float8[],
    p_keep       integer,
    p_queues     text[],
    p_priorities smallint[],
    p_mark_at    timestamptz[],
    p_mark_id    bigint[],
    p_limit      integer,
    p_lookback   interval
) returns table (
    lane integer, id bigint, claims bigint, kind text, payload text, headers text, attempts integer, max_attempts integer,
    crashes integer, suspect boolean, timeout_s float8, created_at timestamptz, run_at timestamptz,
    mark_at timestamptz, mark_id bigint
) language sql as $fn$
    select * from {schema}.work(p_session, p_ids, p_claims, p_took, p_keep, p_queues, p_priorities, p_mark_at, p_mark_id, p_limit,
                                p_lookback, p_limit)
$fn$;
