"""Checks of what keeps the tables small: autovacuum, and whoever holds it back."""

from collections.abc import Iterable
from datetime import UTC, datetime

from supervisor.db.examine import identifier, literal
from supervisor.db.health import Holder, HolderKind
from supervisor.doctor.look import Look
from supervisor.doctor.report import Verdict, note, ok, problem, warning
from supervisor.wording import count, length


async def autovacuum(look: Look) -> Iterable[Verdict]:
    """Whether the server vacuums by itself, and has done so."""
    server, health, limits = await look.server(), await look.health(), look.limits
    found = [
        problem(
            f"{name} is off on this server: dead rows are never removed, and every claim becomes slower",
            f"`alter system set {name} = on`, then `select pg_reload_conf()`",
        )
        for name in ("autovacuum", "track_counts")
        if server.settings.get(name) == "off"
    ]
    now = datetime.fromtimestamp(health.server_now, UTC)
    for table in health.tables:
        fresh = table.vacuumed_at is not None and (now - table.vacuumed_at).total_seconds() < limits.vacuum_s
        if fresh or table.dead_rows < limits.dead_rows or table.dead_rows < limits.dead_share * table.rows:
            continue
        when = "never" if table.vacuumed_at is None else f"{length((now - table.vacuumed_at).total_seconds())} ago"
        found.append(
            warning(
                f"table {table.name} has {count(table.dead_rows)} dead rows beside {count(table.rows)} living ones and "
                f"was vacuumed {when}",
                f"see that nothing holds vacuum back (check horizon) and that supervisors may vacuum (the log says "
                f"vacuum.refused if not), then "
                f"`vacuum (analyze) {identifier(look.schema)}.{identifier(table.name)}`",
            )
        )
    return found or [ok("autovacuum is on and keeps up")]


async def horizon(look: Look) -> Iterable[Verdict]:
    """Old transactions, prepared transactions, slots and standbys: what died since cannot be removed."""
    server, health = await look.server(), await look.health()
    found = [verdict for holder in health.holders if (verdict := _judge(holder, look)) is not None]
    if not server.sees_sessions:
        found.append(
            note(
                f"role {server.role} does not see the transactions of others: who holds vacuum back, and since when, "
                "is not known in full",
                f"`grant pg_read_all_stats to {identifier(server.role)}`",
            )
        )
    return found or [ok("nothing holds vacuum back for long")]


def _judge(holder: Holder, look: Look) -> Verdict | None:
    if holder.age_s is None:
        # Slots do not tell since when; sessions of others do not where the role may not see them.
        if holder.kind is HolderKind.SLOT and (holder.xids or 0) > 0:
            return warning(
                f"replication slot {holder.name} ({holder.state}) holds vacuum back, for {count(holder.xids or 0)} "
                "transactions",
                f"start what reads it, or drop it: `select pg_drop_replication_slot({literal(holder.name)})`",
            )
        return None
    if holder.age_s < look.limits.long_s:
        return None
    tell = problem if holder.age_s >= look.limits.very_long_s else warning
    age = length(holder.age_s)
    if holder.kind is HolderKind.PREPARED:
        return tell(
            f"prepared transaction {holder.name} of {holder.user} has been open for {age} and holds vacuum back",
            f"let its transaction manager end it, or: `rollback prepared {literal(holder.name)}`",
        )
    if holder.kind is HolderKind.STANDBY:
        return tell(
            f"standby {holder.name} (pid {holder.pid}) runs a query that began {age} ago and holds vacuum back here",
            "end that query on the standby, or set hot_standby_feedback = off there",
        )
    who = f"pid {holder.pid}, user {holder.user}, application {holder.name or 'without a name'}, {holder.state}"
    return tell(
        f"a transaction has been open for {age} and holds vacuum back: {who}",
        f"have its owner end it, or: `select pg_terminate_backend({holder.pid})`",
    )
