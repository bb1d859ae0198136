-- wake: tell waiting supervisors that a queue has work.
--
-- Sends    one notification on {channel} with {"queue", "priorities", "at"}: the earliest run_at
--          (epoch seconds) that the statement wrote, so that a supervisor can be ready for a later
--          one and can set its low-water marks back for an earlier one. No job data. Priorities are
--          left out when there are more than 50: the supervisor then looks for itself.
-- Silent   while no supervisor waits: the notification queue has one lock for the whole server,
--          and busy workers find the job without being told.
create or replace function {schema}.wake(p_queue text, p_priorities smallint[], p_at timestamptz) returns void
language plpgsql as $fn$
begin
    if exists (select from {schema}.waiting) then
        perform pg_notify({channel}, json_build_object(
            'queue', p_queue,
            'priorities', case when cardinality(p_priorities) <= 50 then p_priorities end,
            'at', extract(epoch from p_at))::text);
    end if;
end
$fn$;

-- job_enqueued: one wake-up per queue and statement, however many rows it inserts. Silent where
-- enqueue_many takes several statements and wakes at its end, and for jobs at gates, which nobody can claim
-- (add_gated_many tells of those). It runs with its owner's rights: whoever may
-- insert jobs need not see who waits for them.
create or replace function {schema}.job_enqueued() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
begin
    if current_setting('pg_supervisor.quiet', true) is distinct from 'on' and exists (select from {schema}.waiting) then
        perform {schema}.wake(n.queue, array_agg(distinct n.priority), min(n.run_at))
           from inserted n
          where n.gated is not true
          group by n.queue;
    end if;
    return null;
end
$fn$;

create or replace trigger job_enqueued
    after insert on {schema}.job
    referencing new table as inserted
    for each statement execute function {schema}.job_enqueued();
