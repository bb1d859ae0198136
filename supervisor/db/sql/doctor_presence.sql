-- doctor_presence: who is there, and what those who are gone have left.
--
-- Params   late_s: how long after its end something should have been cleared away.
-- Returns  one row: living supervisors, their names; wishes for wake-ups of supervisors that are gone; sessions
--          whose lease passed long ago and that nobody has closed.
-- Locks    none. Small tables: a row per supervisor or worker.
select (select count(*) from {schema}.parent p where p.expires_at > pg_catalog.clock_timestamp()),
       array(select p.name from {schema}.parent p where p.expires_at > pg_catalog.clock_timestamp() order by 1 limit 20),
       (select count(*) from {schema}.waiting w
         where not exists (select from {schema}.parent p
                            where p.id = w.parent
                              and p.expires_at > pg_catalog.clock_timestamp() - make_interval(secs => %(late_s)s))),
       (select count(*) from {schema}.session s
         where s.closed_at is null and s.expires_at < pg_catalog.clock_timestamp() - make_interval(secs => %(late_s)s))
