-- schedules: every entry, for people.
--
-- Returns  the columns of Schedule (db/schedules.py), the database's now last.
select s.name, s.kind, coalesce(s.set_cron, s.cron), coalesce(s.set_tz, s.tz), coalesce(s.set_missed, s.missed),
       s.queue, s.cron, s.tz, s.missed, s.set_at, s.set_by, s.paused_at, s.paused_by, s.retired_at, s.next_at, s.problem,
       s.fired, s.skipped, s.last_tick, s.last_at, s.last_job, clock_timestamp()
  from {schema}.schedule s
 order by s.retired_at is not null, s.name
