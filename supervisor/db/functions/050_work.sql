-- work: acknowledge finished jobs and claim the next ones, in one round trip and one commit.
--
-- Moves    running -> done for (ids, claims); queued -> running for up to p_limit jobs.
-- Params   p_session: the worker's session; it must be live, else SQLSTATE QS001 and nothing happens.
--          p_ids, p_claims, p_took: job ids, each once, their fencing tokens, seconds each ran; one
--          length.
--          p_keep: what history keeps of a finished job: 0 nothing, 1 its row without the payload,
--          2 all. p_queues, p_priorities, p_mark_at, p_mark_id: the lanes to claim from, best first,
--          with the low-water mark to scan from. p_limit: most jobs to claim; 0 claims none.
--          p_lookback: scan at least this far back from now: rows commit later than they are stamped.
-- Returns  one row per claimed job (lane = position in p_queues from 1), with its lane's new mark;
--          then one control row (lane null) whose payload is {"acked", "lost", "short", "next", "now"}:
--          acks accepted, ids whose lease was lost, whether every lane was read to its end, seconds
--          to the next job that will be due (null: none), the database's clock in epoch seconds when
--          the lanes were read: nothing that was stamped later can have been seen.
-- Locks    only rows that it takes; SKIP LOCKED steps over others'. Acks take theirs in the order of
--          ids, as settle and cancel_job do. Ack first, claim second, as separate statements: fused
--          into one they can deadlock.
-- Index    job_pkey for acks, job_lane for claims. The settings below pin the plans: statistics that
--          are missing or stale can never turn a claim into a scan or a sort. Acks join nothing: a join
--          that was planned while the table was empty read the whole index for each batch.
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
    v_now     timestamptz := clock_timestamp();
    v_floor   timestamptz;
    v_acked   bigint[] := '{}';
    v_claimed integer := 0;
    v_next    timestamptz;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'work needs READ COMMITTED, not %', current_setting('transaction_isolation') using errcode = 'QS002';
    end if;
    if not exists (select from {schema}.session s where s.id = p_session and s.closed_at is null) then
        raise exception 'session % is closed', p_session using errcode = 'QS001';
    end if;

    if p_ids <> '{}' then
        with gone as (
            delete from {schema}.job j
             where j.id = any (p_ids) and j.lease = p_session and j.claims = p_claims[array_position(p_ids, j.id)]
            returning j.id, j.run_at, j.created_at, j.claims, j.attempts, j.max_attempts, j.crashes, j.max_crashes, j.priority,
                      j.queue, j.kind, j.unique_key, j.last_error, j.errors, j.payload, j.headers,
                      p_took[array_position(p_ids, j.id)] as took),
        kept as (
            insert into {schema}.history (id, finished_at, started_at, run_at, created_at, claims, attempts, max_attempts, crashes,
                                          max_crashes, priority, queue, kind, unique_key, last_error, errors, payload, headers)
            select g.id, v_now, v_now - make_interval(secs => g.took), g.run_at, g.created_at, g.claims, g.attempts, g.max_attempts,
                   g.crashes, g.max_crashes, (case when g.priority > 500 then g.priority - 1000 else g.priority end)::smallint, g.queue, g.kind, g.unique_key, g.last_error,
                   nullif(g.errors, '[]'),
                   case when p_keep > 1 then g.payload end, case when p_keep > 1 then g.headers end
              from gone g
             where p_keep > 0)
        select coalesce(array_agg(g.id), '{}') into v_acked from gone g;
    end if;

    -- The acks may have waited for a lock, so the clock is read again.
    v_now := clock_timestamp();
    v_floor := v_now - p_lookback;
    if p_limit > 0 then
        for lane, id, claims, kind, payload, headers, attempts, max_attempts, crashes, suspect, timeout_s, created_at, run_at,
            mark_at, mark_id in
            with picked as materialized (
                select l.ord::integer as lane, low.run_at as mark_at, low.id as mark_id, due.tid
                  from unnest(p_queues, p_priorities, p_mark_at, p_mark_id) with ordinality as l (queue, priority, at, id, ord)
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
                        order by j.run_at, j.id + 0 limit p_limit
                          for no key update skip locked) due
                 limit p_limit)
            update {schema}.job j
               set lease = p_session, claims = j.claims + 1, attempts = j.attempts + 1, started_at = v_now
              from picked p
             where j.ctid = p.tid
            returning p.lane, j.id, j.claims, j.kind, j.payload::text, j.headers::text, j.attempts, j.max_attempts, j.crashes,
                      j.suspect, extract(epoch from j.timeout)::float8, j.created_at, j.run_at, p.mark_at, p.mark_id
        loop
            v_claimed := v_claimed + 1;
            return next;
        end loop;
        if v_claimed < p_limit then
            select min(soon.run_at) into v_next
              from unnest(p_queues, p_priorities) as l (queue, priority)
             cross join lateral (
                   select j.run_at from {schema}.job j
                    where j.queue = l.queue and j.priority = l.priority and j.lease is null and j.run_at > v_now
                    order by j.run_at, j.id + 0 limit 1) soon;
        end if;
    end if;

    lane := null; id := null; claims := null; kind := null; headers := null;
    attempts := null; max_attempts := null; crashes := null; suspect := null; timeout_s := null; created_at := null; run_at := null;
    mark_at := null; mark_id := null;
    payload := json_build_object(
        'acked', cardinality(v_acked),
        'lost', case when cardinality(v_acked) < cardinality(p_ids)
                     then (select array_agg(x) from unnest(p_ids) x where x <> all (v_acked)) end,
        'short', v_claimed < p_limit,
        'next', case when isfinite(v_next) then extract(epoch from v_next - clock_timestamp()) end,
        'now', extract(epoch from v_now))::text;
    return next;
end
$fn$;
