-- parents: the supervisors that run, and those that were not heard of any more within the last hour.
--
-- Returns  name, host, pid, version, state, detail (JSON: its workers), started_at, alive, seconds since
--          or until its row expires, id.
-- Locks    none. One row per supervisor.
select p.name, p.host, p.pid, p.version, p.state, p.detail, p.started_at, p.expires_at > clock_timestamp(),
       extract(epoch from p.expires_at - clock_timestamp())::float8,
       p.id
  from {schema}.parent p
 order by p.expires_at > clock_timestamp() desc, p.name, p.host, p.pid
