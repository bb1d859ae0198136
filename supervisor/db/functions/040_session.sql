-- open_session: start a worker incarnation's session. Ids are random 63-bit numbers made by the
-- worker: a failover that loses the last seconds can never hand one out twice.
--
-- Sent again with the same id after a lost answer it prolongs what it opened; a session that was
-- closed meanwhile stays closed.
create or replace function {schema}.open_session(p_id bigint, p_parent bigint, p_name text, p_lease_s float8) returns void
language sql as $fn$
    insert into {schema}.session as s (id, parent, name, expires_at)
    values (p_id, p_parent, p_name, clock_timestamp() + make_interval(secs => p_lease_s))
        on conflict (id) do update
       set expires_at = excluded.expires_at
     where s.closed_at is null
$fn$;

-- renew: prolong the sessions of living workers, in one statement for all of a supervisor's.
--
-- Returns  the ids renewed. A missing one is closed: it was reaped or ended and can never come back;
--          its worker must stop what it runs. An expired one that nobody has reaped yet is renewed:
--          its jobs are still its own.
-- Locks    each session row, in id order; the reaper takes the same lock, so one of the two wins.
create or replace function {schema}.renew(p_ids bigint[], p_lease_s float8) returns setof bigint
language sql as $fn$
    update {schema}.session s
       set expires_at = clock_timestamp() + make_interval(secs => p_lease_s)
      from (select x.id from {schema}.session x
             where x.id = any (p_ids) and x.closed_at is null
             order by x.id for no key update) live
     where s.id = live.id
    returning s.id
$fn$;

-- close_session: end a session whose jobs are all accounted for. What it still holds (a claim whose
-- answer never arrived) goes back untouched at the next sweep.
create or replace function {schema}.close_session(p_id bigint) returns void
language sql as $fn$
    update {schema}.session
       set closed_at = clock_timestamp(), closed_as = 'ended'
     where id = p_id and closed_at is null
$fn$;

-- move_session: go on under a new session after an answer was lost.
--
-- A claim whose answer never arrived has leased jobs that the worker does not know of. The jobs it
-- does know move to the new session; the old one ends, and a sweep frees what it still holds.
-- Params   ids, claims: the known jobs, each once, and their fencing tokens. Sent again with the same new
--          id, after this one's own answer was lost, it returns the same.
-- Returns  the ids held under the new session. A missing one lost its lease.
create or replace function {schema}.move_session(p_old bigint, p_new bigint, p_parent bigint, p_name text, p_lease_s float8,
                                                 p_ids bigint[], p_claims bigint[]) returns setof bigint
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $fn$
begin
    perform {schema}.open_session(p_new, p_parent, p_name, p_lease_s);
    update {schema}.job j
       set lease = p_new
     where j.id = any (p_ids) and j.lease = p_old and j.claims = p_claims[array_position(p_ids, j.id)]
       and exists (select from {schema}.session s where s.id = p_old and s.closed_at is null);
    perform {schema}.close_session(p_old);
    return query
    select j.id
      from {schema}.job j
     where j.id = any (p_ids) and j.lease = p_new and j.claims = p_claims[array_position(p_ids, j.id)]
       and exists (select from {schema}.session s where s.id = p_new and s.closed_at is null);
end
$fn$;

-- reap: close the sessions that nobody renewed in time.
--
-- Returns  their ids and names. Their jobs are freed, and charged a crash, by the sweep.
create or replace function {schema}.reap() returns table (id bigint, name text)
language sql as $fn$
    update {schema}.session s
       set closed_at = clock_timestamp(), closed_as = 'reaped'
      from (select x.id from {schema}.session x
             where x.closed_at is null and x.expires_at < clock_timestamp()
             for no key update skip locked) late
     where s.id = late.id and s.closed_at is null and s.expires_at < clock_timestamp()
    returning s.id, s.name
$fn$;
