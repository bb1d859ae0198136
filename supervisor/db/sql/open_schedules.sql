-- open_schedules: the entries that are fired, for whoever computes ticks.
--
-- Returns  name, kind, revision, cron, tz, missed as they are in force; next_at; the database's now.
-- Index    none: a small table.
select s.name, s.kind, s.revision, coalesce(s.set_cron, s.cron), coalesce(s.set_tz, s.tz), coalesce(s.set_missed, s.missed),
       s.next_at, s.problem, clock_timestamp()
  from {schema}.schedule s
 where s.retired_at is null and s.paused_at is null
 order by s.next_at nulls first, s.name
