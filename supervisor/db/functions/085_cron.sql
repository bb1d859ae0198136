-- Cron: what is defined, what is due, and the orders of operators.
--
-- What must hold   A tick is fired by one statement, which locks its row, adds the job and moves next_at: it
--                  happens once or not at all, whoever dies when. Whoever comes second finds another next_at.
-- Clock            the database's alone; supervisors compute ticks from what it says.
-- Ticks            are computed outside: an expression and a zone are checked here (cron_problem), not run.
-- Rights           what operators call has its owner's, as retry_job has.

-- cron_problem: what is wrong with a cron expression, in words; null when nothing is seen. Internal.
--
-- As supervisor/cron.py reads it; only that finds days that never come together with weekdays.
create or replace function {schema}.cron_problem(p_cron text) returns text
language plpgsql immutable as $fn$
declare
    c_names  constant text[] := '{second,minute,hour,day-of-month,month,day-of-week}';
    c_lows   constant integer[] := '{0,0,0,1,1,0}';
    c_highs  constant integer[] := '{59,59,23,31,12,7}';
    c_months constant text[] := '{JAN,FEB,MAR,APR,MAY,JUN,JUL,AUG,SEP,OCT,NOV,DEC}';
    c_days   constant text[] := '{SUN,MON,TUE,WED,THU,FRI,SAT}';
    v_fields text[] := regexp_split_to_array(btrim(upper(p_cron), E' \t\n\r\f\v'), '[ \t\n\r\f\v]+');
    v_number text := '[0-9]{1,9}';
    v_term   text;
    v_match  text[];
    v_low    integer;
    v_high   integer;
    v_step   integer;
    v_first  integer := 99;  -- the lowest day of the month
    v_months integer[] := '{}';
begin
    if p_cron is null or octet_length(p_cron) > 200 then
        return 'cron must be at most 200 bytes long';
    end if;
    if btrim(p_cron) = '' or cardinality(v_fields) not in (5, 6) then
        return format('cron has %s fields, must have 5 or 6: minute hour day month weekday, optionally a second before them',
                      case when btrim(p_cron) = '' then 0 else cardinality(v_fields) end);
    end if;
    if cardinality(v_fields) = 5 then
        v_fields := array['0'] || v_fields;
    end if;
    for i in 1 .. 6 loop
        foreach v_term in array string_to_array(v_fields[i], ',') loop
            if i = 4 and v_term ~ '^LW?(/0{0,8}[1-9][0-9]{0,8})?$' then
                v_first := 1;
                continue;
            elsif i = 6 and (v_term ~ '^0{0,8}[0-7]L$' or v_term ~ '^(0{0,8}[0-7]|SUN|MON|TUE|WED|THU|FRI|SAT)#0{0,8}[1-5]$') then
                continue;
            end if;
            -- Names become numbers, then every term is one number, a range, or a star; with or without a step.
            v_match := regexp_match(v_term, '^(?:(\*)|([A-Z]{3}|' || v_number || ')(?:-([A-Z]{3}|' || v_number || '))?)(?:/(' || v_number || '))?$');
            if v_match is null then
                return format('cron is no cron expression: bad %s', c_names[i]);
            end if;
            for n in 2 .. 3 loop
                if v_match[n] ~ '^[A-Z]' then
                    v_match[n] := case when i = 5 then array_position(c_months, v_match[n])
                                       when i = 6 then array_position(c_days, v_match[n]) - 1 end;
                    if v_match[n] is null then
                        return format('cron is no cron expression: bad %s', c_names[i]);
                    end if;
                end if;
            end loop;
            v_low := coalesce(v_match[2]::integer, c_lows[i]);
            v_step := coalesce(v_match[4]::integer, 1);
            v_high := case when v_match[1] is not null then c_highs[i]
                           when v_match[3] is not null then v_match[3]::integer
                           when v_match[4] is not null then c_highs[i] else v_low end;
            if v_low < c_lows[i] or v_high > c_highs[i] or v_low > v_high or v_step = 0 then
                return format('cron is no cron expression: bad %s', c_names[i]);
            end if;
            if i = 4 then
                v_first := least(v_first, v_low);
            elsif i = 5 then
                v_months := v_months || array(select generate_series(v_low, v_high, v_step));
            end if;
        end loop;
    end loop;
    -- A star on either side: both must fit.
    if (v_fields[4] like '*%' or v_fields[6] like '*%')
       and v_first > (select max((array[31,29,31,30,31,30,31,31,30,31,30,31])[m]) from unnest(v_months) m) then
        return 'cron is no cron expression: bad day-of-month';
    end if;
    return null;
end
$fn$;

-- declare_schedules: a supervisor says which kinds it runs and which entries they have; entries follow.
--
-- Params   kinds: all that it runs, names of before included. entries: a JSON array of objects as Entry of
--          supervisor/cron.py. ttl_s: for how long this holds if nothing more is heard.
-- Rule     of a kind that supervisors define differently, the definition that was first seen last counts, until
--          its last supervisor is gone; one that was away for 15 minutes is a new one. An entry that no counting
--          definition has is retired; it comes back with its next_at, as if what was between had been missed.
-- Returns  names of entries that were added, changed, retired; null when somebody else is at it.
create or replace function {schema}.declare_schedules(p_kinds text[], p_entries jsonb, p_ttl_s float8) returns text[]
language plpgsql as $fn$
declare
    v_now     timestamptz := clock_timestamp();
    v_memory  constant interval := '15 minutes';
    v_keep    constant interval := '30 days';
    v_defined jsonb;
    v_changed text[];
    v_retired text[];
begin
    if not pg_try_advisory_xact_lock(hashtextextended('pg-supervisor schedules ' || {schema_literal}, 0)) then
        return null;
    end if;
    insert into {schema}.schedule_version as v (kind, digest, entries, first_seen, expires_at)
    select k.kind, md5(coalesce(e.entries, '[]')::text), coalesce(e.entries, '[]'), v_now, v_now + make_interval(secs => p_ttl_s)
      from (select distinct unnest(p_kinds) as kind) k
      left join (select x ->> 'kind' as kind, jsonb_agg(x order by x ->> 'name') as entries
                   from jsonb_array_elements(p_entries) x group by 1) e on e.kind = k.kind
     where e.entries is not null
        or exists (select from {schema}.schedule_version o where o.kind = k.kind)
        or exists (select from {schema}.schedule s where s.kind = k.kind)
        on conflict (kind, digest) do update
       set first_seen = case when v.expires_at < v_now - v_memory then v_now else v.first_seen end,
           expires_at = greatest(v.expires_at, excluded.expires_at);
    delete from {schema}.schedule_version v where v.expires_at < v_now - v_memory;
    delete from {schema}.schedule s where s.retired_at < v_now - v_keep;

    select coalesce(jsonb_agg(x), '[]') into v_defined
      from (select distinct on (v.kind) v.entries from {schema}.schedule_version v
             where v.expires_at > v_now order by v.kind, v.first_seen desc, v.digest) w
     cross join lateral jsonb_array_elements(w.entries) x;
    with defined as (
        -- One row per name, should two kinds have an entry of one name.
        select distinct on (d.name) d.* from jsonb_to_recordset(v_defined) as d (
            name text, kind text, cron text, tz text, missed integer, queue text, priority integer,
            max_attempts integer, max_crashes integer, unique_key text, payload jsonb, options jsonb)
         order by d.name, d.kind),
    written as (
        insert into {schema}.schedule as s (name, kind, cron, tz, missed, queue, priority, max_attempts, max_crashes, unique_key, payload,
                                            options)
        select d.name, d.kind, d.cron, d.tz, d.missed, d.queue, d.priority, d.max_attempts, d.max_crashes, d.unique_key, d.payload,
               coalesce(d.options, '{}')
          from defined d
            on conflict (name) do update
           set kind = excluded.kind, cron = excluded.cron, tz = excluded.tz, missed = excluded.missed, queue = excluded.queue,
               priority = excluded.priority, max_attempts = excluded.max_attempts, max_crashes = excluded.max_crashes,
               unique_key = excluded.unique_key, payload = excluded.payload, options = excluded.options, retired_at = null, updated_at = v_now,
               revision = s.revision + 1,
               next_at = case when coalesce(s.set_cron, s.cron) = coalesce(s.set_cron, excluded.cron)
                               and coalesce(s.set_tz, s.tz) = coalesce(s.set_tz, excluded.tz) then s.next_at end
         where s.retired_at is not null
            or (s.kind, s.cron, s.tz, s.missed, s.queue, s.priority, s.max_attempts, s.max_crashes, s.unique_key, s.payload, s.options)
               is distinct from (excluded.kind, excluded.cron, excluded.tz, excluded.missed, excluded.queue, excluded.priority,
                                 excluded.max_attempts, excluded.max_crashes, excluded.unique_key, excluded.payload,
                                 excluded.options)
        returning s.name)
    select coalesce(array_agg(w.name), '{}') into v_changed from written w;
    with retired as (
        update {schema}.schedule s set retired_at = v_now, revision = s.revision + 1, updated_at = v_now
         where s.retired_at is null
           and not exists (select from jsonb_array_elements(v_defined) x where x ->> 'name' = s.name)
        returning s.name)
    select coalesce(array_agg(r.name), '{}') into v_retired from retired r;
    return v_changed || v_retired;
end
$fn$;

-- plan_schedule: say when an entry is due next, or why that cannot be said. Internal.
--
-- Returns  whether it was still to be said, under this revision.
create or replace function {schema}.plan_schedule(p_name text, p_revision bigint, p_next_at timestamptz, p_problem text)
returns boolean
language plpgsql as $fn$
begin
    update {schema}.schedule s
       set next_at = coalesce(s.next_at, p_next_at), problem = p_problem, updated_at = clock_timestamp()
     where s.name = p_name and s.revision = p_revision and (s.next_at is null or p_problem is not null)
       and (s.next_at is null and p_next_at is not null or s.problem is distinct from p_problem);
    return found;
end
$fn$;

-- schedule_job: a job of an entry, as enqueue_many takes it, without headers. Internal.
create or replace function {schema}.schedule_job(p_row {schema}.schedule) returns jsonb
language sql immutable as $fn$
    select p_row.options || jsonb_build_object(
        'kind', p_row.kind, 'payload', p_row.payload, 'queue', p_row.queue, 'priority', p_row.priority,
        'max_attempts', p_row.max_attempts, 'max_crashes', p_row.max_crashes, 'unique_key', p_row.unique_key)
$fn$;

-- fire_schedule: add the jobs of an entry's due ticks and move on to the next one, in one statement.
--
-- Params   revision, at: of the look that this was computed from. ticks: to be fired. skipped: due and not
--          fired. following: the first tick after now; null: to be computed.
-- Returns  one row: job, how late its last tick was in seconds. None: fired by another, changed, paused,
--          retired, or not due yet by this clock.
-- Locks    the entry's row, SKIP LOCKED: whoever has it fires it. With a unique_key, as enqueue.
create or replace function {schema}.fire_schedule(
    p_name text, p_revision bigint, p_at timestamptz, p_ticks timestamptz[], p_skipped bigint, p_following timestamptz
) returns table (job bigint, late_s float8)
language plpgsql as $fn$
declare
    v_row  {schema}.schedule;
    v_now  timestamptz := clock_timestamp();
    v_tick timestamptz;
begin
    select s.* into v_row from {schema}.schedule s
     where s.name = p_name and s.revision = p_revision and s.next_at = p_at and p_at <= v_now
       and s.paused_at is null and s.retired_at is null
       for no key update skip locked;
    if not found or v_now < any (p_ticks) then
        return;
    end if;
    job := v_row.last_job;
    foreach v_tick in array p_ticks loop
        select e.id into job from {schema}.enqueue_many(jsonb_build_array({schema}.schedule_job(v_row) || jsonb_build_object(
            'headers', jsonb_build_object('schedule', p_name, 'tick', to_char(v_tick at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))))) e;
    end loop;
    update {schema}.schedule s
       set next_at = p_following, fired = s.fired + cardinality(p_ticks), skipped = s.skipped + p_skipped, problem = null,
           last_tick = coalesce(v_tick, s.last_tick), last_job = job, updated_at = v_now,
           last_at = case when v_tick is null then s.last_at else v_now end
     where s.name = p_name;
    late_s := extract(epoch from v_now - coalesce(v_tick, v_now));
    return next;
end
$fn$;

-- check_schedule: refuse a name that no entry has, and a name of whoever orders that is too long. Internal.
create or replace function {schema}.check_schedule(p_name text, p_by text) returns {schema}.schedule
language plpgsql as $fn$
declare
    v_row {schema}.schedule;
begin
    if octet_length(p_by) > 200 then
        raise exception 'by must be at most 200 bytes long, not %', octet_length(p_by) using errcode = '22023';
    end if;
    select s.* into v_row from {schema}.schedule s where s.name = p_name for no key update;
    if not found then
        raise exception 'name: no schedule is called %', coalesce(quote_literal(p_name), 'null') using errcode = '22023';
    end if;
    return v_row;
end
$fn$;

-- pause_schedule: fire nothing of an entry until it is resumed; ticks of between are not missed, they are none.
--
-- Returns  whether it was not paused before.
create or replace function {schema}.pause_schedule(name text, by text default null) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
#variable_conflict use_column
declare
    v_row {schema}.schedule := {schema}.check_schedule(pause_schedule.name, pause_schedule.by);
begin
    update {schema}.schedule s
       set paused_at = clock_timestamp(), paused_by = pause_schedule.by, revision = s.revision + 1, updated_at = clock_timestamp()
     where s.name = v_row.name and s.paused_at is null;
    return found;
end
$fn$;

-- resume_schedule: fire a paused entry again, from its first tick after now on.
--
-- Returns  whether it was paused.
create or replace function {schema}.resume_schedule(name text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
#variable_conflict use_column
declare
    v_row {schema}.schedule := {schema}.check_schedule(resume_schedule.name, null);
begin
    update {schema}.schedule s
       set paused_at = null, paused_by = null, next_at = null, revision = s.revision + 1, updated_at = clock_timestamp()
     where s.name = v_row.name and s.paused_at is not null;
    return found;
end
$fn$;

-- run_schedule: add one job of an entry now, paused or not; its ticks stay as they are.
--
-- Returns  as enqueue.
create or replace function {schema}.run_schedule(name text, by text default null) returns table (id bigint, created boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
#variable_conflict use_column
declare
    v_row {schema}.schedule := {schema}.check_schedule(run_schedule.name, run_schedule.by);
begin
    if v_row.retired_at is not null then
        raise exception 'name: schedule % is retired: no running supervisor has its handler', quote_literal(v_row.name)
            using errcode = '22023';
    end if;
    return query select e.id, e.created from {schema}.enqueue_many(jsonb_build_array({schema}.schedule_job(v_row) || jsonb_build_object(
        'headers', jsonb_build_object('schedule', v_row.name) || coalesce(jsonb_build_object('run_by', run_schedule.by), '{}')))) e;
end
$fn$;

-- set_schedule: set when an entry is due, whatever its handler says, until unset_schedule. Null leaves as it is.
--
-- Params   missed: how many missed ticks are fired at most, 0 to 1000.
-- When     from its first tick after now on.
create or replace function {schema}.set_schedule(
    name text, cron text default null, tz text default null, missed integer default null, by text default null
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
#variable_conflict use_column
declare
    v_problem text := {schema}.cron_problem(set_schedule.cron);
    v_row     {schema}.schedule;
begin
    if set_schedule.cron is null and set_schedule.tz is null and set_schedule.missed is null then
        raise exception 'nothing to set: give cron, tz or missed' using errcode = '22023',
            hint = 'unset_schedule goes back to what the handler says';
    end if;
    if set_schedule.cron is not null and v_problem is not null then
        raise exception '%', v_problem using errcode = '22023';
    end if;
    if set_schedule.tz is not null
       and (set_schedule.tz ~ '^(posix|right)/|^(localtime|posixrules|Factory)$'
            or not exists (select from pg_timezone_names z where z.name = set_schedule.tz)) then
        raise exception 'tz is %, no time zone that is known here', quote_literal(set_schedule.tz) using errcode = '22023';
    end if;
    if set_schedule.missed not between 0 and 1000 then
        raise exception 'missed is %, must be 0 to 1000', set_schedule.missed using errcode = '22023';
    end if;
    v_row := {schema}.check_schedule(set_schedule.name, set_schedule.by);
    update {schema}.schedule s
       set set_cron = coalesce(set_schedule.cron, s.set_cron), set_tz = coalesce(set_schedule.tz, s.set_tz),
           set_missed = coalesce(set_schedule.missed, s.set_missed), set_at = clock_timestamp(), set_by = set_schedule.by,
           next_at = case when set_schedule.cron is null and set_schedule.tz is null then s.next_at end,
           problem = null, revision = s.revision + 1, updated_at = clock_timestamp()
     where s.name = v_row.name;
end
$fn$;

-- unset_schedule: go back to what the handler says. A pause stays.
--
-- Returns  whether anything was set.
create or replace function {schema}.unset_schedule(name text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
#variable_conflict use_column
declare
    v_row {schema}.schedule := {schema}.check_schedule(unset_schedule.name, null);
begin
    update {schema}.schedule s
       set set_cron = null, set_tz = null, set_missed = null, set_at = null, set_by = null, problem = null,
           next_at = case when s.set_cron is null and s.set_tz is null then s.next_at end,
           revision = s.revision + 1, updated_at = clock_timestamp()
     where s.name = v_row.name and s.set_at is not null;
    return found;
end
$fn$;
