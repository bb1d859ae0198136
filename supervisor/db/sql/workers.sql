-- workers: the workers whose sessions are open, and what each says it runs.
--
-- Params   limit: the most returned.
-- Returns  parent (id of its supervisor; may be one that is gone), name, opened_at, seconds until the lease
--          ends, seconds since `doing` was written (null: never), doing.
-- Locks    none. The table has a row per worker incarnation of the last hour.
select s.parent, s.name, s.opened_at, extract(epoch from s.expires_at - clock_timestamp())::float8,
       extract(epoch from clock_timestamp() - s.seen_at)::float8, s.doing
  from {schema}.session s
 where s.closed_at is null
 order by s.parent, s.name, s.id
 limit %(limit)s
