-- matching: the next ids that a filter names, of the living jobs or of the dead letters, in the order of ids.
--
-- Params   p_living: job, else dead_letter. p_statuses: queued, running; dead, cancelled. p_scheduled: of the queued ones
--          only those due later (true; of a job at a gate the time that it was asked for counts), or all (null). p_kind,
--          p_queue: null takes any. p_older_than: enqueued longer ago than that. p_key: its unique_key, ordering_key,
--          concurrency_key or rate_key. p_after, p_upto: ids above after, up to upto. p_most: ids returned at most.
--          p_window: rows looked at at most, so that a filter that fits few rows does not read them all at once.
-- Returns  the ids, and where to go on (p_after of the next call); null: there is nothing behind.
-- Locks    none: whoever acts on them takes what is still there.
-- Index    job_pkey, dead_letter_pkey, from p_after on.
-- Rights   as retry_job.
create or replace function {schema}.matching(
    p_living boolean, p_statuses text[], p_scheduled boolean, p_kind text, p_queue text, p_older_than interval, p_key text,
    p_after bigint, p_upto bigint, p_most integer, p_window integer, out ids bigint[], out edge bigint
) language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $fn$
declare
    v_before timestamptz := clock_timestamp() - p_older_than;
    v_looked bigint;
    v_last   bigint;
begin
    if p_living then
        with looked as materialized (
            select j.id,
                   case when j.lease is null then 'queued' else 'running' end = any (p_statuses)
                   and (p_scheduled is null or j.run_at > now()
                        and (j.gated is not true or not exists (
                             select from {schema}.gated g
                              where g.job_id = j.id and g.gate is not null and g.due_at <= now())))
                   and (p_kind is null or j.kind = p_kind)
                   and (p_queue is null or j.queue = p_queue)
                   and (v_before is null or j.created_at < v_before)
                   and (p_key is null or j.unique_key = p_key
                        or (j.gated and exists (select from {schema}.gated g where g.job_id = j.id
                                                   and p_key in (g.ordering_key, g.concurrency_key, g.rate_key)))) as fits
              from {schema}.job j
             where j.id > p_after and j.id <= p_upto
             order by j.id limit p_window)
        select array(select l.id from looked l where l.fits order by l.id limit p_most),
               (select count(*) from looked), (select max(l.id) from looked l)
          into ids, v_looked, v_last;
    else
        with looked as materialized (
            select d.id,
                   d.status = any (p_statuses)
                   and (p_kind is null or d.kind = p_kind)
                   and (p_queue is null or d.queue = p_queue)
                   and (v_before is null or d.created_at < v_before)
                   and (p_key is null or d.unique_key = p_key
                        or exists (select from {schema}.gated g where g.job_id = d.id
                                      and p_key in (g.ordering_key, g.concurrency_key, g.rate_key))) as fits
              from {schema}.dead_letter d
             where d.id > p_after and d.id <= p_upto
             order by d.id limit p_window)
        select array(select l.id from looked l where l.fits order by l.id limit p_most),
               (select count(*) from looked), (select max(l.id) from looked l)
          into ids, v_looked, v_last;
    end if;
    if cardinality(ids) = p_most then
        edge := ids[p_most];
    elsif v_looked = p_window then
        edge := v_last;
    end if;
end
$fn$;

-- cancel_jobs: cancel those that a filter names, a batch at a time. An operator's word, for every language:
--
--     select * from supervisor.cancel_jobs(queue => 'bulk', older_than => '1 day');
--
-- Params   the filter, one of it at least: kind, queue, statuses (queued, running), older_than (enqueued longer ago), key
--          (its unique_key, ordering_key, concurrency_key or rate_key). after, upto: where to go on, and the last id that is
--          meant. most: jobs of this batch, at most 10,000. kill_after: as p_kill_after of cancel_job. dry_run: only count.
-- Returns  cancelled: taken out of the queue; asked: running ones, being told; edge: call again with after => edge until
--          it is null. A batch may find none and have an edge: 20,000 rows are looked at in one.
-- Rights   as retry_job.
create or replace function {schema}.cancel_jobs(
    kind text default null, queue text default null, statuses text[] default '{queued,running}', older_than interval default null,
    key text default null, after bigint default 0, upto bigint default null, most integer default 1000,
    kill_after interval default null, dry_run boolean default false
) returns table (cancelled integer, asked integer, edge bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
declare
    v_ids bigint[];
begin
    if kind is null and queue is null and older_than is null and key is null and statuses @> '{queued,running}' then
        raise exception 'cancel_jobs needs a filter: kind, queue, statuses, older_than or key' using errcode = '22023';
    end if;
    if not statuses <@ '{queued,running}' or statuses = '{}' then
        raise exception 'statuses must be of queued, running' using errcode = '22023';
    end if;
    if most not between 1 and 10000 then
        raise exception 'most must be between 1 and 10000' using errcode = '22023';
    end if;
    select m.ids, m.edge into v_ids, edge
      from {schema}.matching(true, statuses, null, kind, queue, older_than, key, after,
                             coalesce(upto, 9223372036854775807), most, 20000) m;
    if dry_run then
        select count(*) filter (where j.lease is null), count(*) filter (where j.lease is not null)
          into cancelled, asked from {schema}.job j where j.id = any (v_ids);
    else
        select count(*) filter (where c.what = 'cancelled'), count(*) filter (where c.what = 'asked')
          into cancelled, asked from {schema}.cancel_job(v_ids, kill_after) c;
    end if;
    return next;
end
$fn$;

-- retry_jobs: put back those dead or cancelled jobs that a filter names, a batch at a time. As cancel_jobs.
--
-- Returns  retried: put back; taken: left, since a living job holds their unique key; edge: as of cancel_jobs.
create or replace function {schema}.retry_jobs(
    kind text default null, queue text default null, statuses text[] default array['dead'], older_than interval default null,
    key text default null, after bigint default 0, upto bigint default null, most integer default 1000,
    dry_run boolean default false
) returns table (retried integer, taken integer, edge bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
declare
    v_ids bigint[];
    v_id  bigint;
begin
    if not statuses <@ '{dead,cancelled}' or statuses = '{}' then
        raise exception 'statuses must be of dead, cancelled' using errcode = '22023';
    end if;
    if most not between 1 and 10000 then
        raise exception 'most must be between 1 and 10000' using errcode = '22023';
    end if;
    select m.ids, m.edge into v_ids, edge
      from {schema}.matching(false, statuses, null, kind, queue, older_than, key, after,
                             coalesce(upto, 9223372036854775807), most, 20000) m;
    retried := 0;
    taken := 0;
    if dry_run then
        retried := cardinality(v_ids);
    else
        begin
            select count(*) into retried from {schema}.retry_job(v_ids);
        exception when unique_violation then
            foreach v_id in array v_ids loop
                begin
                    perform {schema}.retry_job(array[v_id]);
                    retried := retried + 1;
                exception when unique_violation then
                    taken := taken + 1;
                end;
            end loop;
        end;
    end if;
    return next;
end
$fn$;
