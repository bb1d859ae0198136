"""Checks of the server: what it is, what this role's sessions are like, what is left of its means."""

from collections.abc import Iterable

from supervisor.db.examine import identifier, literal
from supervisor.db.health import Slot
from supervisor.doctor.look import Look
from supervisor.doctor.report import Verdict, note, ok, problem, warning
from supervisor.wording import count, length, size

OLDEST, NEWEST = 15, 18
PARENT_CONNECTIONS = 6
"""Leases, sweeps, looking, LISTEN, and one for the facts behind the metrics."""


async def version(look: Look) -> Iterable[Verdict]:
    """The server's release, and whether it takes writes."""
    server = await look.server()
    major = server.version // 10_000
    named = f"PostgreSQL {major}.{server.version % 10_000}"
    found = []
    if major < OLDEST:
        found.append(
            problem(f"{named} is too old: {OLDEST} to {NEWEST} are supported", f"upgrade the server to {NEWEST}")
        )
    elif major > NEWEST:
        found.append(
            warning(
                f"{named} is newer than what this release was tested with ({OLDEST} to {NEWEST})",
                "use a release of pg-supervisor that names it, or try it out before you rely on it",
            )
        )
    if server.standby:
        found.append(
            problem(
                f"this server is a standby and takes no writes ({named})",
                "name all hosts in SUPERVISOR_DATABASE_URL (host1,host2) without target_session_attrs: the one that "
                "takes writes is then found",
            )
        )
    return found or [ok(f"{named}, database {server.database}")]


async def durability(look: Look) -> Iterable[Verdict]:
    """Whether what was committed survives a crash."""
    server = await look.server()
    found = [
        warning(
            f"{name} is off: a crash of the machine can cost the whole database, jobs included",
            f"`alter system set {name} = on`, then `select pg_reload_conf()`",
        )
        for name in ("fsync", "full_page_writes")
        if server.settings.get(name) == "off"
    ]
    if server.settings.get("synchronous_commit") == "off":
        found.append(
            warning(
                f"synchronous_commit is off for role {server.role}: a crash of the server can take back the last "
                "moments, so jobs that were added vanish and finished ones run again",
                f"`alter role {identifier(server.role)} in database {identifier(server.database)} "
                "set synchronous_commit = on`",
            )
        )
    return found or [ok("commits are durable")]


async def role(look: Look) -> Iterable[Verdict]:
    """What the role's sessions begin with. The service sets what it needs, but cannot behind a pooler."""
    server, pooled = await look.server(), await look.pooled()
    where = f"role {identifier(server.role)} in database {identifier(server.database)}"
    found = []

    def wrong(name: str, what: str, value: str) -> None:
        remedy = f"`alter {where} set {name} = {value}`"
        found.append(
            problem(what, remedy) if pooled else note(f"{what}; the service's own sessions override it", remedy)
        )

    level = server.settings.get("default_transaction_isolation", "read committed")
    if level != "read committed":
        wrong("default_transaction_isolation", f"role {server.role} begins transactions as {level}", "'read committed'")
    if server.settings.get("default_transaction_read_only") == "on":
        wrong("default_transaction_read_only", f"role {server.role} begins read-only transactions", "off")
    limit = server.setting_s("statement_timeout")
    if 0 < limit < look.settings.statement_timeout_s:
        wrong("statement_timeout", f"role {server.role} has a statement_timeout of {limit:g} s", "0")
    idle = server.setting_s("idle_in_transaction_session_timeout")
    if pooled and idle > 0:  # of the service's own sessions it is no matter, and elsewhere it is a good thing
        found.append(
            warning(
                f"role {server.role} has an idle_in_transaction_session_timeout of {idle:g} s, which behind a pooler "
                "holds for handlers' transactions too",
                f"`alter {where} set idle_in_transaction_session_timeout = 0`",
            )
        )
    for name, what in (
        ("idle_session_timeout", "LISTEN and links without work are cut off each time"),
        ("transaction_timeout", "transactions of handlers that take longer are broken off"),
    ):
        if server.setting_s(name) > 0:
            found.append(
                warning(
                    f"role {server.role} has a {name} of {server.setting_s(name):g} s: {what}",
                    f"`alter {where} set {name} = 0`",
                )
            )
    if server.superuser:
        found.append(
            note(f"role {server.role} is a superuser", "`supervisor migrate --roles` makes roles with fewer rights")
        )
    if server.remote and not server.encrypted:
        found.append(note("the connection to the server is not encrypted", "add sslmode=verify-full to the address"))
    return found or [ok(f"role {server.role} begins its sessions as the service needs them")]


async def connections(look: Look) -> Iterable[Verdict]:
    """What this service may open against what the server allows."""
    server, chosen = await look.server(), look.settings
    needed = PARENT_CONNECTIONS + chosen.processes * (1 + chosen.pool_size)
    sum_ = f"{PARENT_CONNECTIONS} + {chosen.processes} workers x (1 + SUPERVISOR_POOL_SIZE={chosen.pool_size})"
    if await look.pooled():
        return [ok(f"this service opens up to {needed} connections ({sum_}), to a pooler")]
    limits = {
        f"the server allows {server.max_connections - server.reserved} (max_connections less those reserved)": (
            server.max_connections - server.reserved,
            "raise max_connections, which needs a restart",
        ),
        f"role {server.role} is limited to {server.role_limit}": (
            server.role_limit,
            f"`alter role {identifier(server.role)} connection limit -1`",
        ),
        f"database {server.database} is limited to {server.database_limit}": (
            server.database_limit,
            f"`alter database {identifier(server.database)} connection limit -1`",
        ),
    }
    found = [
        problem(
            f"this service may open {needed} connections ({sum_}), and {said}",
            f"lower SUPERVISOR_PROCESSES or SUPERVISOR_POOL_SIZE, put a pooler in between, or {remedy}",
        )
        for said, (limit, remedy) in limits.items()
        if limit is not None and needed > limit
    ]
    if found:
        return found
    health = await look.health()
    free = server.max_connections - server.reserved - health.connections
    if health.connections and free < needed // 4:
        return [
            warning(
                f"{health.connections} of {server.max_connections} connections are in use, by whomever; this service "
                f"may open {needed} ({sum_})",
                "raise max_connections, put a pooler in front of the other clients, or lower SUPERVISOR_PROCESSES",
            )
        ]
    used = f"{health.connections} of {server.max_connections} are in use"
    return [ok(f"this service opens up to {needed} connections, {used}")]


async def notifications(look: Look) -> Iterable[Verdict]:
    """The server's one queue of notifications. Full, it makes every commit fail that notifies."""
    used = (await look.health()).notification_queue
    if used < look.limits.notices:
        return [ok(f"the notification queue is {used:.0%} full")]
    said = (
        f"the notification queue is {used:.0%} full: a session that listens has not read for long, in some transaction"
    )
    remedy = (
        "end the oldest transaction of a session that listens: `select pg_terminate_backend(pid) from pg_stat_activity "
        "where state like 'idle in transaction%' and xact_start = (select min(xact_start) from pg_stat_activity "
        "where state like 'idle in transaction%')`"
    )
    return [problem(said, remedy) if used > 0.75 else warning(said, remedy)]


async def wraparound(look: Look) -> Iterable[Verdict]:
    """Transaction ids."""
    health = await look.health()
    if health.xid_age > health.xid_limit * 1.2:
        return [
            warning(
                f"the oldest transaction id of this database is {count(health.xid_age)} transactions old, and vacuum "
                f"should have frozen it at {count(health.xid_limit)}: at 2 billion the server takes no more writes",
                "end what holds vacuum back (check horizon), then `vacuum (freeze)`",
            )
        ]
    return [ok(f"transaction ids: {count(health.xid_age)} of {count(health.xid_limit)} before they are frozen")]


async def clock(look: Look) -> Iterable[Verdict]:
    """This host's clock against the server's. Jobs go by the server's alone."""
    skew = await look.db.skew()
    beyond = abs(skew.seconds) - skew.bound_s
    side = "behind" if skew.seconds > 0 else "ahead of"
    said = f"this host's clock is {length(abs(skew.seconds))} {side} the database's"
    within = f"(to within {max(1, round(skew.bound_s * 1000))} ms)"
    if beyond > look.limits.skew_s:
        return [
            warning(
                f"{said} {within}: jobs go by the database's clock and are not affected, but log lines of this host "
                "are dated wrongly, and so are times that callers compute",
                "let a time service (chrony, systemd-timesyncd) set the clocks of this host and of the database's",
            )
        ]
    return [ok(f"the clocks of this host and of the database agree {within}")]


async def slots(look: Look) -> Iterable[Verdict]:
    """Replication slots: log that nobody reads fills the disk."""
    found = [_slot(slot) for slot in (await look.health()).slots if _too_much(slot, look.limits.slot_bytes)]
    return found or [ok("no replication slot keeps much log")]


def _too_much(slot: Slot, limit: int) -> bool:
    return slot.wal_status in ("lost", "unreserved") or (not slot.active and (slot.retained_bytes or 0) > limit)


def _slot(slot: Slot) -> Verdict:
    kept = "an unknown amount" if slot.retained_bytes is None else size(slot.retained_bytes)
    state = "read by nobody" if not slot.active else "read"
    return warning(
        f"replication slot {slot.name} ({slot.type}) is {state} and keeps {kept} of write-ahead log"
        + (f"; its log is {slot.wal_status}" if slot.wal_status in ("lost", "unreserved") else "")
        + ": the disk fills, and then no job can be stored",
        f"start what reads it, or drop it: `select pg_drop_replication_slot({literal(slot.name)})`",
    )
