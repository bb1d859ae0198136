-- parent_beat: say that this supervisor lives, what it does, and whether it wants wake-ups.
--
-- Params   id, name, host, pid, version, state, detail (JSON text), ttl_s, waiting.
-- Locks    its own two rows.
with me as (
    insert into {schema}.parent as p (id, name, host, pid, version, state, detail, expires_at)
    values (%(id)s, %(name)s, %(host)s, %(pid)s, %(version)s, %(state)s, %(detail)s::jsonb,
            clock_timestamp() + make_interval(secs => %(ttl_s)s))
        on conflict (id) do update
       set state = excluded.state, detail = excluded.detail, expires_at = excluded.expires_at),
asked as (
    insert into {schema}.waiting (parent) select %(id)s where %(waiting)s on conflict do nothing)
delete from {schema}.waiting where parent = %(id)s and not %(waiting)s
