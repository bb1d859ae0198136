-- event_problem: what is wrong with an event that is to be published, in words; null when nothing is. Internal.
create or replace function {schema}.event_problem(p_topic text, p_payload jsonb, p_key text, p_headers jsonb) returns text
language sql immutable as $fn$
    select case
        when p_topic is null or octet_length(p_topic) not between 1 and 255
            then 'topic must be 1 to 255 bytes long, not ' || coalesce(octet_length(p_topic)::text, 'null')
        when octet_length(p_key) not between 1 and 1024
            then 'key must be 1 to 1024 bytes long, not ' || octet_length(p_key)
        when jsonb_typeof(p_payload) is distinct from 'object'
            then 'payload must be a JSON object, not ' || coalesce(jsonb_typeof(p_payload), 'null')
        when jsonb_typeof(p_headers) is distinct from 'object'
            then 'headers must be a JSON object, not ' || coalesce(jsonb_typeof(p_headers), 'null')
        when p_headers <> '{}' then (
            -- As publish() of the package has it: HTTP's token, which every broker takes.
            select case
                when bool_or(h.key !~ $re$^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}$$re$ or lower(h.key) = 'ce-')
                    then 'the names of headers must be 1 to 100 letters, digits and !#$%&''*+-.^_`|~'
                when sum(octet_length(h.key) + octet_length(h.value)) > 65536
                    then 'headers must be at most 65536 bytes long, not ' || sum(octet_length(h.key) + octet_length(h.value))
            end from jsonb_each_text(p_headers) as h)
    end
$fn$;

-- publish: add one event, in the caller's transaction. The function for every language.
--
-- Params   topic; payload: a JSON object. key: events of one key are published in the order of their
--          transactions; without one there is no order. headers: a JSON object, sent along as text.
--          event_id: by which consumers know a duplicate; made here when not given.
-- Returns  one row: the row's id, and the event's id.
-- Rights   its owner's, in the caller's transaction: a producer needs EXECUTE and no right to any table.
create or replace function {schema}.publish(
    topic    text,
    payload  jsonb default '{}',
    key      text  default null,
    headers  jsonb default '{}',
    event_id uuid  default null
) returns table (id bigint, event uuid)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
#variable_conflict use_column
declare
    v_problem text := {schema}.event_problem(publish.topic, publish.payload, publish.key, publish.headers);
begin
    if v_problem is not null then
        raise exception 'event refused: %', v_problem using errcode = '22023';
    end if;
    return query
    insert into {schema}.outbox as o (topic, payload, key, headers, event_id)
    values (publish.topic, publish.payload, publish.key, publish.headers, coalesce(publish.event_id, gen_random_uuid()))
    returning o.id, o.event_id;
end
$fn$;

-- publish_many: add many events at once, in the caller's transaction; all or none.
--
-- Params   events: a JSON array of objects with the names of publish's parameters.
-- Returns  one row per event, in the array's order (ord from 1).
create or replace function {schema}.publish_many(events jsonb)
returns table (ord integer, id bigint, event uuid)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
#variable_conflict use_column
declare
    v_bad record;
    v_ids regclass := pg_get_serial_sequence(format('%I.outbox', {schema_literal}), 'id');
begin
    if jsonb_typeof(events) is distinct from 'array' then
        raise exception 'events must be a JSON array, not %', coalesce(jsonb_typeof(events), 'null') using errcode = '22023';
    end if;
    select e.ordinality as ord, p.problem into v_bad
      from jsonb_array_elements(events) with ordinality as e (value, ordinality)
     cross join lateral jsonb_to_record(case when jsonb_typeof(e.value) = 'object' then e.value else '{}' end)
                     as x (topic text, payload jsonb, key text, headers jsonb)
     cross join lateral (
           select {schema}.event_problem(x.topic, coalesce(x.payload, '{}'), x.key, coalesce(x.headers, '{}'))) as p (problem)
     where p.problem is not null
     order by e.ordinality limit 1;
    if found then
        raise exception 'event refused: events[%]: %', v_bad.ord - 1, v_bad.problem using errcode = '22023';
    end if;
    return query
    with wanted as materialized (
        select e.ordinality::integer as ord, x.topic, coalesce(x.payload, '{}') as payload, x.key,
               coalesce(x.headers, '{}') as headers, coalesce(x.event_id, gen_random_uuid()) as event_id,
               -- The transaction's number first, then the ids, in the array's order: as the table's defaults do.
               pg_current_xact_id() as xid,
               nextval(v_ids) as id
          from jsonb_array_elements(events) with ordinality as e (value, ordinality)
         cross join lateral jsonb_to_record(e.value)
                         as x (topic text, payload jsonb, key text, headers jsonb, event_id uuid)
         order by e.ordinality),
    added as (
        insert into {schema}.outbox (id, topic, payload, key, headers, event_id)
        select w.id, w.topic, w.payload, w.key, w.headers, w.event_id from wanted w)
    select w.ord, w.id, w.event_id from wanted w order by w.ord;
end
$fn$;

-- outbox_added: one wake-up per statement, and only while an idle relay waits for it: the notification queue has
-- one lock for the whole server, and a busy relay reads again without being told. It runs with its owner's
-- rights: whoever may publish need not see the relays.
create or replace function {schema}.outbox_added() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
begin
    if exists (select from {schema}.relay r where r.waiting and r.expires_at > clock_timestamp()) then
        perform pg_notify({schema_literal} || '.outbox', 'added');
    end if;
    return null;
end
$fn$;

create or replace trigger outbox_added
    after insert on {schema}.outbox
    for each statement execute function {schema}.outbox_added();
