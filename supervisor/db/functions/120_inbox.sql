-- first_seen: note that a consumer handles an event, in the transaction that handles it.
--
-- Returns  true the first time; false when it was handled before. Another transaction that is handling the same
--          event is waited for: if it rolls back, this one is the first.
create or replace function {schema}.first_seen(p_consumer text, p_event_id text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
begin
    insert into {schema}.inbox (consumer, event_id) values (p_consumer, p_event_id) on conflict do nothing;
    return found;
end
$fn$;

-- receive: a job for each event that this consumer has not had before, all in this transaction.
--
-- Params   events: event ids, and a job for each as enqueue_many takes it, a pair per position.
-- Returns  how many were new; the others are duplicates, and nothing is done for them.
create or replace function {schema}.receive(p_consumer text, p_event_ids text[], p_jobs jsonb) returns integer
language plpgsql as $fn$
declare
    v_jobs  jsonb;
    v_fresh integer;
begin
    with wanted as (
        select u.event_id, min(u.ord) as ord
          from unnest(p_event_ids) with ordinality as u (event_id, ord) group by u.event_id),
    fresh as (
        -- In one order, so that two consumers of the same events wait for each other in turn.
        insert into {schema}.inbox (consumer, event_id)
        select p_consumer, w.event_id from wanted w order by w.event_id collate "C"
            on conflict do nothing
        returning event_id)
    select jsonb_agg(p_jobs -> (w.ord - 1)::integer order by w.ord), count(*) into v_jobs, v_fresh
      from fresh join wanted w on w.event_id = fresh.event_id;
    if v_fresh > 0 then
        perform from {schema}.enqueue_many(v_jobs);
    end if;
    return v_fresh;
end
$fn$;

-- park_received: keep an event that no job can be made of, so that its broker can be rid of it; once, however often
-- it is delivered.
create or replace function {schema}.park_received(
    p_consumer text, p_topic text, p_event_id text, p_reason text, p_body bytea, p_headers jsonb
) returns void
language plpgsql as $fn$
begin
    if {schema}.first_seen(p_consumer, p_event_id) then
        insert into {schema}.inbox_parked (consumer, topic, event_id, reason, body, headers)
        values (p_consumer, p_topic, p_event_id, p_reason, p_body, p_headers);
    end if;
end
$fn$;

-- tidy_outbox: make and drop partitions of what was published, prune the inbox, forget relays long gone.
--
-- Returns  rows removed, -1 when somebody else is at it; the caller goes on at once while it returns p_limit.
-- Rights   its owner's: a worker neither owns these tables nor may delete from them.
create or replace function {schema}.tidy_outbox(
    p_keep_sent interval, p_keep_inbox interval, p_keep_parked interval, p_limit integer
) returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp set timezone = 'UTC' set lock_timeout = '200ms' as $fn$
declare
    v_day   date := (clock_timestamp() at time zone 'UTC')::date;
    v_name  text;
    v_total integer := 0;
    v_count integer;
begin
    if not pg_try_advisory_xact_lock(hashtextextended('pg-supervisor tidy ' || {schema_literal}, 0)) then
        return -1;
    end if;
    -- Ahead of time. A day that cannot be made (its rows lie in the default partition already, somebody reads
    -- for long) is left to the default partition, which is pruned by row.
    for i in 0 .. 2 loop
        v_name := 'outbox_sent_' || to_char(v_day + i, 'YYYYMMDD');
        continue when exists (select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
                               where n.nspname = {schema_literal} and c.relname = v_name);
        begin
            execute format('create table %I.%I partition of %I.outbox_sent for values from (%L) to (%L)',
                           {schema_literal}, v_name, {schema_literal}, (v_day + i)::timestamptz, (v_day + i + 1)::timestamptz);
        exception
            when duplicate_table or check_violation then null;
            when lock_not_available then exit;
        end;
    end loop;
    begin
        for v_name in
            select c.relname from pg_catalog.pg_inherits i
              join pg_catalog.pg_class c on c.oid = i.inhrelid
             where i.inhparent = format('%I.outbox_sent', {schema_literal})::regclass
               and c.relname ~ '^outbox_sent_[0-9]{8}$'
               and to_date(substr(c.relname, 13), 'YYYYMMDD') + 1 < clock_timestamp() - greatest(p_keep_sent, '0')
             order by 1 limit 1
        loop
            execute format('drop table %I.%I', {schema_literal}, v_name);
        end loop;
    exception
        when lock_not_available then null;  -- a reader is at it: the next call tries again
    end;
    delete from {schema}.outbox_sent_default s where s.ctid = any (array(
        select x.ctid from {schema}.outbox_sent_default x where x.sent_at < clock_timestamp() - p_keep_sent limit p_limit));
    get diagnostics v_count = row_count;
    v_total := v_total + v_count;
    delete from {schema}.inbox i where i.ctid = any (array(
        select x.ctid from {schema}.inbox x where x.seen_at < clock_timestamp() - p_keep_inbox order by x.seen_at limit p_limit));
    get diagnostics v_count = row_count;
    v_total := v_total + v_count;
    delete from {schema}.inbox_parked i where i.id = any (array(
        select x.id from {schema}.inbox_parked x where x.parked_at < clock_timestamp() - p_keep_parked
         order by x.parked_at limit p_limit));
    get diagnostics v_count = row_count;
    v_total := v_total + v_count;
    delete from {schema}.relay r where r.expires_at < clock_timestamp() - interval '1 hour';
    return v_total;
end
$fn$;
