-- make_partitions: history's partitions for today (UTC) and the days ahead.
--
-- Params   p_days_ahead: at most 31 are made.
-- Returns  the number made. One that another supervisor is making is left to it. A day whose rows
--          already lie in the default partition cannot be carved out of it and stays there.
-- Rights   its owner's, as for the other two below: a worker neither owns the history nor may delete from it.
create or replace function {schema}.make_partitions(p_days_ahead integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' set lock_timeout = '200ms' as $fn$
declare
    v_day  date;
    v_name text;
    v_made integer := 0;
begin
    for i in 0 .. least(p_days_ahead, 31) loop
        v_day := (clock_timestamp() at time zone 'UTC')::date + i;
        v_name := 'history_' || to_char(v_day, 'YYYYMMDD');
        continue when exists (select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
                               where n.nspname = {schema_literal} and c.relname = v_name);
        begin
            execute format('create table %I.%I partition of %I.history for values from (%L) to (%L)',
                           {schema_literal}, v_name, {schema_literal}, v_day::timestamptz, (v_day + 1)::timestamptz);
            v_made := v_made + 1;
        exception
            when duplicate_table or check_violation then null;
            -- Acks queue behind each try: one is enough. There are days of time for the next call.
            when lock_not_available then exit;
        end;
    end loop;
    return v_made;
end
$fn$;

-- drop_partitions: drop the oldest of history's partitions that ended more than p_keep ago; never one that has
-- not ended.
--
-- Returns  the name dropped; none when there is none left. Dropping needs a lock that a reader of history
--          may hold for long: a call gives up after 200 ms (55P03), so that no ack queues behind it, and
--          the next one tries again. One at a time, so that what was dropped stays dropped.
create or replace function {schema}.drop_partitions(p_keep interval) returns setof text
language plpgsql security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' set lock_timeout = '200ms' as $fn$
declare
    v_name text;
begin
    for v_name in
        select c.relname from pg_catalog.pg_inherits i
          join pg_catalog.pg_class c on c.oid = i.inhrelid
         where i.inhparent = format('%I.history', {schema_literal})::regclass
           and c.relname ~ '^history_[0-9]{8}$'
           and to_date(substr(c.relname, 9), 'YYYYMMDD') + 1 < clock_timestamp() - greatest(p_keep, '0')
         order by 1 limit 1
    loop
        execute format('drop table %I.%I', {schema_literal}, v_name);
        return next v_name;
    end loop;
end
$fn$;

-- prune: remove rows past their age from every helper table, in short batches.
--
-- Returns  rows removed; the caller goes on while it returns p_limit or more.
create or replace function {schema}.prune(p_keep_history interval, p_keep_dead interval, p_limit integer) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
declare
    v_total bigint := 0;
    v_count bigint;
    v_gone  bigint[];
begin
    delete from {schema}.history_default h where h.ctid = any (array(
        select x.ctid from {schema}.history_default x where x.finished_at < clock_timestamp() - p_keep_history limit p_limit));
    get diagnostics v_count = row_count;
    v_total := v_total + v_count;
    perform {schema}.cancel_waiting(clock_timestamp() - p_keep_dead, p_limit);
    with gone as (
        delete from {schema}.dead_letter d where d.id = any (array(
            select x.id from {schema}.dead_letter x
             where x.finished_at < clock_timestamp() - p_keep_dead
               and not exists (select from {schema}.job_after l where l.parent = x.id)
             order by x.finished_at limit p_limit for update skip locked))
        returning d.id)
    select coalesce(array_agg(gone.id), '{}') into v_gone from gone;
    v_total := v_total + cardinality(v_gone) + {schema}.prune_gates(v_gone, p_limit);
    v_total := v_total + {schema}.prune_holds(p_limit);
    delete from {schema}.session s where s.id = any (array(
        select x.id from {schema}.session x where x.closed_at < clock_timestamp() - interval '1 hour' limit p_limit));
    get diagnostics v_count = row_count;
    v_total := v_total + v_count;
    delete from {schema}.tally t where (t.minute, t.queue, t.event) in (
        select x.minute, x.queue, x.event from {schema}.tally x where x.minute < clock_timestamp() - interval '7 days'
         order by x.minute, x.queue, x.event limit p_limit);
    get diagnostics v_count = row_count;
    v_total := v_total + v_count;
    delete from {schema}.result r where r.job_id = any (array(
        select x.job_id from {schema}.result x where x.expires_at < clock_timestamp() order by x.expires_at limit p_limit));
    get diagnostics v_count = row_count;
    v_total := v_total + v_count;
    delete from {schema}.awaited a where a.until < clock_timestamp();
    delete from {schema}.waiting w where not exists (
        select from {schema}.parent p where p.id = w.parent and p.expires_at > clock_timestamp());
    delete from {schema}.parent p where p.expires_at < clock_timestamp() - interval '1 hour';
    return v_total;
end
$fn$;
