"""The database's figures as gauges: which label values they get, and what is left out.

Queues that neither handlers nor settings name are added up as "other", and of ages the greatest counts.
What the database could not say is missing, not zero.

Elsewhere: the figures (db/health.py); the gauges and what they mean (metrics/facts.py); those of the outbox
(outbox/figures.py).
"""

from collections.abc import Iterable, Iterator
from typing import Final

from supervisor.db.gates import Gates
from supervisor.db.health import Depths, Holder, HolderKind, TableHealth
from supervisor.db.queues import QueueSettings
from supervisor.db.schedules import Schedule
from supervisor.metrics import OTHER, bounded_label, known_labels
from supervisor.metrics.facts import Values

_STATUSES: Final = ("due", "scheduled", "waiting", "running", "dead")
_OWNERS: Final = ("supervisor", "session", "standby", "prepared")
_LATE_S: Final = 60.0
_MOST_INDEXES: Final = 50  # ours are ten; users may add some


def of_queues(depths: Depths) -> Values:
    """The gauges of the queues' depths and ages."""
    jobs: dict[tuple[str, ...], float] = {
        (queue, status): 0.0 for queue in known_labels("queue") for status in _STATUSES
    }
    oldest: dict[tuple[str, ...], float] = {
        (queue, status): 0.0 for queue in known_labels("queue") for status in ("due", "running")
    }
    for depth in depths.queues:
        queue = bounded_label("queue", depth.queue)
        for status in _STATUSES:
            count = getattr(depth, status)
            if count is not None:
                jobs[queue, status] = jobs.get((queue, status), 0.0) + count
        for status, age in (("due", depth.oldest_due_s), ("running", depth.oldest_running_s)):
            oldest[queue, status] = max(oldest.get((queue, status), 0.0), age or 0.0)
    for status in ("waiting", "running"):
        if any(getattr(depth, status) is None for depth in depths.queues):  # counting took too long
            jobs = {key: value for key, value in jobs.items() if key[1] != status}
            oldest = {key: value for key, value in oldest.items() if key[1] != status}
    return {
        "queue_jobs": jobs,
        "queue_oldest_seconds": oldest,
        "queue_jobs_limit": {(): depths.limit},
        "queue_lanes": {(): depths.lanes},
    }


def of_schedules(entries: Iterable[Schedule]) -> Values:
    """The gauges of cron entries."""
    states: dict[tuple[str, ...], float] = {(state,): 0.0 for state in ("open", "paused", "broken", "retired")}
    latest, late = 0.0, 0
    for one in entries:
        states[one.state,] += 1
        latest = max(latest, one.overdue_s)
        late += one.overdue_s > _LATE_S
    return {"schedules": states, "schedule_overdue_seconds": {(): latest}, "schedules_late": {(): late}}


def of_settings(settings: Iterable[QueueSettings], depths: Depths) -> Values:
    """The gauges of what operators have set, and what that holds back. Of the other queues one pauses "other"."""
    paused: dict[tuple[str, ...], float] = {(queue,): 0.0 for queue in known_labels("queue")}
    since = dict(paused)
    limits: dict[tuple[str, ...], float] = {}
    rates: dict[tuple[str, ...], float] = {}
    held: dict[tuple[str, ...], float] = {}
    due = {depth.queue: depth.due for depth in depths.queues}
    for one in settings:
        queue = bounded_label("queue", one.name)
        paused[queue,] = max(paused.get((queue,), 0.0), float(one.paused))
        since[queue,] = max(since.get((queue,), 0.0), one.paused_s or 0.0)
        if one.max_running is not None and queue != OTHER:
            limits[queue,] = one.max_running
        if one.rate_limit is not None and one.rate_period_s and queue != OTHER:
            rates[queue,] = one.rate_limit / one.rate_period_s
        for reason, holds in _held(one):
            held[queue, reason] = held.get((queue, reason), 0.0) + (due.get(one.name, 0) if holds else 0)
    return {
        "queue_paused": paused,
        "queue_paused_seconds": since,
        "queue_running_limit": limits,
        "queue_rate_limit": rates,
        "queue_held_jobs": held,
    }


def _held(queue: QueueSettings) -> Iterator[tuple[str, bool]]:
    """What is set of a queue, and whether it lets none start."""
    if queue.paused:
        yield "paused", True
    if queue.max_running is not None:
        yield "max_running", not queue.counted or (queue.running or 0) >= queue.max_running
    if queue.rate_limit is not None:
        yield "rate", queue.rate_free == 0


def of_gates(gates: Gates | None) -> Values:
    """The gauges of what waits at gates; none where counting took too long."""
    if gates is None:
        return {}
    return {
        "gate_jobs": {(name,): gate.jobs for name, gate in gates.by_gate.items()},
        "gate_oldest_seconds": {(name,): gate.oldest_s for name, gate in gates.by_gate.items()},
        "gate_late_seconds": {(): gates.late_s},
    }


def of_tables(health: TableHealth) -> Values:
    """The gauges of tables, indexes, snapshots, slots and the server."""
    indexes = sorted(health.indexes, key=lambda index: -index.bytes)[:_MOST_INDEXES]
    readers = [slot for slot in health.slots if slot.active]
    return {
        "table_rows": {(table.name,): table.rows for table in health.tables},
        "table_dead_rows": {(table.name,): table.dead_rows for table in health.tables},
        "table_bytes": {(table.name,): table.total_bytes for table in health.tables},
        "table_bloat_bytes": {
            (table.name,): table.bloat_bytes for table in health.tables if table.bloat_bytes is not None
        },
        "table_vacuum_age_seconds": {
            (table.name,): max(0.0, health.server_now - table.vacuumed_at.timestamp())
            for table in health.tables
            if table.vacuumed_at is not None
        },
        "index_bytes": {(index.name,): index.bytes for index in indexes},
        "index_bloat_bytes": {(index.name,): index.bloat_bytes for index in indexes if index.bloat_bytes is not None},
        "oldest_snapshot_seconds": _ages(health.holders),
        "oldest_snapshot_transactions": {
            (owner,): max((holder.xids or 0 for holder in health.holders if holder.owner == owner), default=0)
            for owner in (*_OWNERS, str(HolderKind.SLOT))
        },
        "replication_slots": {("active",): len(readers), ("inactive",): len(health.slots) - len(readers)},
        "replication_slot_bytes": {(): max((slot.retained_bytes or 0 for slot in health.slots), default=0)},
        "notification_queue_ratio": {(): health.notification_queue},
        "database_connections": {(): health.connections},
        "database_connections_limit": {(): health.max_connections},
    }


def _ages(holders: Iterable[Holder]) -> dict[tuple[str, ...], float]:
    """By owner; without those of whom nothing is known but that they hold."""
    ages: dict[tuple[str, ...], float] = {}
    for owner in _OWNERS:
        mine = [holder.age_s for holder in holders if holder.owner == owner]
        known = [age for age in mine if age is not None]
        if known or not mine:
            ages[owner,] = max(0.0, *known, 0.0)
    return ages
