-- open_schedules: the entries that are fired, for whoever computes ticks.
--
-- Returns  name, kind, revision, cron, tz, missed as they are in force; next_at; problem; the database's now; whether a
--          supervisor that defines it was heard of in time. One that nobody defines is about to be retired, or everybody
--          was away: who comes back says so first.
-- Index    schedule_version_pkey; else none: a small table.
select s.name, s.kind, s.revision, coalesce(s.set_cron, s.cron), coalesce(s.set_tz, s.tz), coalesce(s.set_missed, s.missed),
       s.next_at, s.problem, clock_timestamp(),
       exists (select from {schema}.schedule_version v
                where v.kind = s.kind and v.expires_at > clock_timestamp()
                  and v.entries @> jsonb_build_array(jsonb_build_object('name', s.name)))
  from {schema}.schedule s
 where s.retired_at is null and s.paused_at is null
 order by s.next_at nulls first, s.name
