-- How a relay reads without a cursor and without walking over what is gone.
--
-- A relay remembers per part the highest id it has read (its position), and of its last look the snapshot. What
-- can appear at or below a position afterwards was written by a transaction that was open in that snapshot, or
-- began later (a replayed event has its old id). So a look is two index ranges: per part the ids above the
-- position, and by xid the rows of those transactions that are at or below it. Both hold live rows only, or
-- nearly: what was published and deleted lies below the position, and no look ever walks over it again, with
-- or without an old snapshot that keeps it from being vacuumed away.
--
-- Order: all rows of one look come from one snapshot, and whoever waited for another's transaction has the
-- higher id and is seen no earlier; so per key, ids are the order in which events are to be published.

-- read_outbox: what is pending and not read before.
--
-- Params   p_parts, p_pos: parts and positions, a pair per element; p_each: most rows of one part, p_limit: of
--          all. p_open: transactions that were open at the last look; p_since: the first that had not begun
--          (null: no last look, everything is above the positions). p_most_late: most rows at or below them.
-- Returns  snapshot: this look's, in every row; and a row per event, or one with a null id when there is none.
--          late: at or below its part's position. wait_s: until it may be tried again. Where as many as
--          p_most_late are late, no others are returned: those were next in order.
-- Index    outbox_pkey per part, outbox_xid per finished transaction.
create or replace function {schema}.read_outbox(
    p_parts smallint[], p_pos bigint[], p_each integer, p_limit integer, p_open xid8[], p_since xid8, p_most_late integer
) returns table (snapshot text, late boolean, id bigint, part smallint, topic text, key text, event_id text, payload text,
                 headers text, created_at float8, attempts integer, wait_s float8)
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_material = off
set jit = off
as $fn$
#variable_conflict use_column
begin
    return query
    with look as materialized (
        select pg_current_snapshot() as seen),
    led as materialized (
        select u.part, u.pos, u.ord from unnest(p_parts, p_pos) with ordinality as u (part, pos, ord)),
    -- `offset 0`: look-ups in the outbox, one per row of the other side. Where statistics say that the outbox is
    -- empty, it could else be read as a whole, dead rows and all, and joined afterwards.
    recent as materialized (
        select o.part, o.id from look, unnest(p_open) as open (xid)
         cross join lateral (select o.part, o.id from {schema}.outbox o where o.xid = open.xid offset 0) o
         where pg_visible_in_snapshot(open.xid, look.seen)
        union all
        select o.part, o.id from {schema}.outbox o where o.xid >= p_since),
    below as materialized (
        select r.part, r.id from recent r
         where exists (select from led where led.part = r.part and r.id <= led.pos)
         order by r.id limit p_most_late),
    late as materialized (
        select o.* from below b
         cross join lateral (select o.* from {schema}.outbox o where o.part = b.part and o.id = b.id offset 0) o),
    fresh as materialized (
        select o.* from led
         cross join lateral (
               select o.* from {schema}.outbox o where o.part = led.part and o.id > led.pos
                order by o.part, o.id limit p_each) o
         limit case when (select count(*) from late) < p_most_late then p_limit else 0 end),
    found as (
        select true as late, l.* from late l union all select false, f.* from fresh f)
    select look.seen::text, f.late, f.id, f.part, f.topic, f.key, f.event_id::text, f.payload::text,
           f.headers::text, extract(epoch from f.created_at)::float8, f.attempts,
           greatest(0, extract(epoch from f.retry_at - clock_timestamp()))::float8
      from look left join found f on true;
end
$fn$;

-- lead_parts: say that a relay lives, and take its fair share of the parts that nobody leads.
--
-- Returns  every part the relay leads now, with its token and where to begin reading; share: how many it should
--          have. It gives back what is above that by give_parts, once nothing of it is in flight.
-- Locks    its own row; parts that are free or whose relay has expired, SKIP LOCKED.
create or replace function {schema}.lead_parts(
    p_relay bigint, p_name text, p_host text, p_pid integer, p_version text, p_broker text, p_state text, p_waiting boolean,
    p_detail jsonb, p_lease_s float8
) returns table (part smallint, token bigint, low bigint, share integer)
language plpgsql as $fn$
#variable_conflict use_column
declare
    v_share integer;
    v_mine  integer;
begin
    insert into {schema}.relay as r (id, name, host, pid, version, broker, state, waiting, detail, expires_at)
    values (p_relay, p_name, p_host, p_pid, p_version, p_broker, p_state, p_waiting, p_detail,
            clock_timestamp() + make_interval(secs => p_lease_s))
        on conflict (id) do update
       set state = excluded.state, waiting = excluded.waiting, detail = excluded.detail, expires_at = excluded.expires_at;
    select ceil(64.0 / greatest(1, count(*)))::integer into v_share
      from {schema}.relay r where r.state = 'leading' and r.expires_at > clock_timestamp();
    select count(*) into v_mine from {schema}.outbox_part p where p.holder = p_relay;
    if p_state = 'leading' and v_mine < v_share then
        with free as materialized (
            select p.part from {schema}.outbox_part p
             where p.holder is null
                or not exists (select from {schema}.relay r where r.id = p.holder and r.expires_at > clock_timestamp())
             order by p.part limit v_share - v_mine
               for no key update of p skip locked)
        update {schema}.outbox_part p set holder = p_relay, token = p.token + 1 from free where p.part = free.part;
    end if;
    return query
    select p.part, p.token, p.low, v_share from {schema}.outbox_part p where p.holder = p_relay order by p.part;
end
$fn$;

-- give_parts: lead these parts no longer. Returns how many were led until now.
create or replace function {schema}.give_parts(p_relay bigint, p_parts smallint[]) returns integer
language plpgsql as $fn$
declare
    v_count integer;
begin
    update {schema}.outbox_part p set holder = null where p.holder = p_relay and p.part = any (p_parts);
    get diagnostics v_count = row_count;
    if v_count > 0 then
        perform pg_notify({schema_literal} || '.outbox', 'parts');
    end if;
    return v_count;
end
$fn$;

-- relay_gone: a relay has stopped: its parts are free at once.
create or replace function {schema}.relay_gone(p_relay bigint) returns void
language plpgsql as $fn$
begin
    perform {schema}.give_parts(p_relay, array(select p.part from {schema}.outbox_part p where p.holder = p_relay));
    delete from {schema}.relay r where r.id = p_relay;
end
$fn$;

-- raise_low: where a new leader of a part begins to read; only by who leads it, and only upwards.
create or replace function {schema}.raise_low(p_relay bigint, p_parts smallint[], p_tokens bigint[], p_lows bigint[]) returns void
language sql as $fn$
    update {schema}.outbox_part p set low = u.low
      from unnest(p_parts, p_tokens, p_lows) as u (part, token, low)
     where p.part = u.part and p.holder = p_relay and p.token = u.token and p.low < u.low
$fn$;

-- confirm_events: the broker has these events; they leave the outbox, and are kept for a while where that is wanted.
--
-- Params   arrays of one length, an event per position, with the token under which its part is led.
-- Returns  the ids that left. A missing one was published by a relay that no longer leads its part: the leader
--          publishes it again, under the same event id.
-- Index    outbox_pkey, one probe per event.
create or replace function {schema}.confirm_events(
    p_relay bigint, p_parts smallint[], p_tokens bigint[], p_ids bigint[], p_keep boolean, p_keep_payload boolean
) returns setof bigint
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
set jit = off
as $fn$
begin
    return query
    with led as materialized (
        -- Not locked against a change of hands: the broker has the event, so it may leave whoever leads now.
        select p.part, p.token from {schema}.outbox_part p where p.part = any (p_parts) and p.holder = p_relay),
    mine as materialized (
        -- Look-ups by key, then by place: see read_outbox.
        select o.tid from unnest(p_parts, p_tokens, p_ids) as c (part, token, id)
         cross join lateral (
               select o.ctid as tid from {schema}.outbox o where o.part = c.part and o.id = c.id offset 0) o
         where exists (select from led where led.part = c.part and led.token = c.token)),
    gone as (
        delete from {schema}.outbox o using mine where o.ctid = mine.tid
        returning o.id, o.created_at, o.attempts, o.topic, o.key, o.event_id, o.payload, o.headers),
    kept as (
        insert into {schema}.outbox_sent (id, sent_at, created_at, attempts, topic, key, event_id, payload, headers)
        select g.id, clock_timestamp(), g.created_at, g.attempts, g.topic, g.key, g.event_id,
               case when p_keep_payload then g.payload end, case when p_keep_payload then g.headers end
          from gone g where p_keep)
    select g.id from gone g;
end
$fn$;

-- refuse_events: the broker will not have these events: they are tried again later, or parked past their attempts.
--
-- Params   arrays of one length, as for confirm_events, with the reason of each. p_base_s, p_cap_s: backoff.
-- Returns  per event that is the caller's to judge: parked, attempts so far, seconds until it may be tried again.
create or replace function {schema}.refuse_events(
    p_relay bigint, p_parts smallint[], p_tokens bigint[], p_ids bigint[], p_errors text[],
    p_max_attempts integer, p_base_s float8, p_cap_s float8
) returns table (id bigint, parked boolean, attempts integer, wait_s float8)
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $fn$
#variable_conflict use_column
declare
    v_event {schema}.outbox;
    v_wait  interval;
begin
    for i in 1 .. coalesce(cardinality(p_ids), 0) loop
        perform from {schema}.outbox_part p
          where p.part = p_parts[i] and p.holder = p_relay and p.token = p_tokens[i] for share;
        continue when not found;
        v_wait := {schema}.backoff(coalesce((select o.attempts from {schema}.outbox o
                                              where o.part = p_parts[i] and o.id = p_ids[i]), 0) + 1, p_base_s, p_cap_s);
        update {schema}.outbox o
           set attempts = o.attempts + 1, last_error = p_errors[i], retry_at = clock_timestamp() + v_wait
         where o.part = p_parts[i] and o.id = p_ids[i]
        returning o.* into v_event;
        continue when not found;
        id := v_event.id;
        attempts := v_event.attempts;
        parked := v_event.attempts >= p_max_attempts;
        wait_s := extract(epoch from v_wait);
        if parked then
            delete from {schema}.outbox o where o.part = v_event.part and o.id = v_event.id;
            insert into {schema}.outbox_parked (id, created_at, attempts, part, topic, key, event_id, payload, headers, last_error)
            values (v_event.id, v_event.created_at, v_event.attempts, v_event.part, v_event.topic, v_event.key,
                    v_event.event_id, v_event.payload, v_event.headers, v_event.last_error);
        end if;
        return next;
    end loop;
end
$fn$;

-- held_keys: the keys of these parts that a parked event holds back.
create or replace function {schema}.held_keys(p_parts smallint[]) returns table (part smallint, key text)
language sql stable as $fn$
    select distinct p.part, p.key from {schema}.outbox_parked p where p.part = any (p_parts) and p.key is not null
$fn$;

-- replay_events: put parked events back, at their old places and with all attempts before them.
--
-- Returns  the ids put back; others are not parked.
-- Rights   its owner's: an operator may act by this and write to no table.
create or replace function {schema}.replay_events(p_ids bigint[]) returns setof bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
begin
    return query
    with back as (
        delete from {schema}.outbox_parked p where p.id = any (p_ids) returning p.*),
    low as (
        update {schema}.outbox_part t set low = least(t.low, b.low)
          from (select b.part, min(b.id) - 1 as low from back b group by b.part) b
         where t.part = b.part and t.low > b.low),
    added as (
        insert into {schema}.outbox (id, created_at, topic, key, event_id, payload, headers)
        select b.id, b.created_at, b.topic, b.key, b.event_id, b.payload, b.headers from back b)
    select b.id from back b order by b.id;
    perform pg_notify({schema_literal} || '.outbox', 'released');
end
$fn$;

-- drop_events: forget parked events; what their keys held back goes on. Returns the ids dropped.
create or replace function {schema}.drop_events(p_ids bigint[]) returns setof bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
begin
    return query delete from {schema}.outbox_parked p where p.id = any (p_ids) returning p.id;
    perform pg_notify({schema_literal} || '.outbox', 'released');
end
$fn$;
