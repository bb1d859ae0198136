"""The state of the whole queue for `supervisor status`: depths, supervisors, what died last.

Always true: nothing here counts without a limit, so a look at a queue of ten million jobs costs it nothing;
plans are pinned, so that statistics which are missing or stale cannot turn a look into a scan.

Elsewhere: the connection and its errors, single jobs (operate.py); how it is shown (cli/status.py).
"""

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from psycopg import Connection, errors
from psycopg.rows import class_row, tuple_row

from supervisor.db import queues
from supervisor.db.statements import statement

MOST_COUNTED: Final = 10_000
"""Counts stop here, per lane; there may be more than what they tell."""
_LIMIT: Final = {"limit": MOST_COUNTED + 1}
_PATIENCE: Final = "2s"
PLANS: Final = (
    "select set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), "
    "set_config('enable_sort', 'off', true), set_config('jit', 'off', true)"
)
"""Pins plans for the rest of a transaction."""


@dataclass(slots=True)
class QueueDepth:
    """The jobs of one queue. `running` and `waiting` (at a gate) are None where counting took too long; `at_least`
    names the counts that are lower bounds; `oldest_due_s` is how long the first due job has waited."""

    queue: str
    due: int = 0
    scheduled: int = 0
    waiting: int | None = 0
    running: int | None = 0
    dead: int = 0
    oldest_due_s: float | None = None
    paused: bool = False
    max_running: int | None = None
    rate_limit: int | None = None
    rate_period_s: float | None = None
    at_least: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Ended:
    """Jobs that have ended; `at_least` names the counts that are lower bounds."""

    dead: int = 0
    cancelled: int = 0
    done: int = 0
    at_least: list[str] = field(default_factory=list)


class ParentRow(NamedTuple):
    """A supervisor, as it last said. `expires_in_s` is below 0 when it was not heard of in time."""

    name: str
    host: str
    pid: int
    version: str
    state: str
    detail: dict[str, Any]
    started_at: datetime
    alive: bool
    expires_in_s: float
    id: int


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A line of the list of recent deaths."""

    id: int
    kind: str
    queue: str
    reason: str
    attempts: int
    crashes: int
    finished_at: datetime
    last_error: str | None


def depths(conn: Connection, schema: str, *, most: int = MOST_COUNTED, running: bool = True) -> list[QueueDepth]:
    """Every queue in use with its counts, bounded, by name.

    Args:
        most: Counts stop here, per lane.
        running: Count what runs too; else it is None.
    """
    register_lanes(conn, schema)
    found: dict[str, QueueDepth] = {}
    with conn.transaction(), conn.cursor(row_factory=tuple_row) as cur:
        cur.execute(PLANS)
        limit = {"limit": most + 1}
        for queue, _, due, scheduled, waited in cur.execute(statement("lane_depths", schema), limit).fetchall():
            depth = found.setdefault(queue, QueueDepth(queue, running=0 if running else None))
            depth.due += min(due, most)
            depth.scheduled += min(scheduled, most)
            if waited is not None:
                depth.oldest_due_s = max(waited, depth.oldest_due_s or 0.0)
            for name, count in (("due", due), ("scheduled", scheduled)):
                if count > most and name not in depth.at_least:
                    depth.at_least.append(name)
    if running:
        counts = _patiently(conn, schema, "running_depths", _LIMIT)
        for queue, count in counts or ():
            found.setdefault(queue, QueueDepth(queue)).running = count
        for depth in found.values():
            depth.running = depth.running if counts is not None else None
    parked = _patiently(conn, schema, "waiting_depths", limit)
    for depth in found.values():
        depth.waiting = 0 if parked is not None else None
    for queue, count in parked or ():
        depth = found.setdefault(queue, QueueDepth(queue, running=0 if running else None))
        depth.waiting = (depth.waiting or 0) + min(count, most)
        if count > most and "waiting" not in depth.at_least:
            depth.at_least.append("waiting")
    with conn.cursor(row_factory=tuple_row) as cur:
        for queue, count in cur.execute(statement("dead_depths", schema), _LIMIT).fetchall():
            depth = found.setdefault(queue, QueueDepth(queue, running=0 if running else None))
            depth.dead = min(count, MOST_COUNTED)
            if count > MOST_COUNTED:
                depth.at_least.append("dead")
    for one in queues.settings(conn, schema):
        depth = found.setdefault(one.name, QueueDepth(one.name))
        depth.paused = one.paused
        depth.max_running = one.max_running
        depth.rate_limit, depth.rate_period_s = one.rate_limit, one.rate_period_s
    return [found[queue] for queue in sorted(found)]


def register_lanes(conn: Connection, schema: str) -> None:
    """Register lanes that nobody has. Parents do it; where none runs, whoever looks. One without the right skips it."""
    with suppress(errors.InsufficientPrivilege, errors.ReadOnlySqlTransaction), conn.transaction():
        conn.execute(statement("discover", schema))


def _patiently(conn: Connection, schema: str, name: str, limit: dict[str, int]) -> list[Any] | None:
    """The rows of a statement that dead rows may make slow; None where it took too long."""
    try:
        with conn.transaction(), conn.cursor(row_factory=tuple_row) as cur:
            cur.execute(PLANS + ", set_config('statement_timeout', %s, true)", (_PATIENCE,))
            return cur.execute(statement(name, schema), limit).fetchall()
    except errors.QueryCanceled:
        return None


def ended(conn: Connection, schema: str) -> Ended:
    """How many jobs have ended, bounded."""
    found = Ended()
    with conn.cursor(row_factory=tuple_row) as cur:
        counts = cur.execute(statement("ended_depths", schema), _LIMIT).fetchone() or (0, 0, 0)
    for name, count in zip(("dead", "cancelled", "done"), counts, strict=True):
        setattr(found, name, min(count, MOST_COUNTED))
        if count > MOST_COUNTED:
            found.at_least.append(name)
    return found


def parents(conn: Connection, schema: str) -> list[ParentRow]:
    """The supervisors, living ones first."""
    with conn.cursor(row_factory=tuple_row) as cur:
        return [ParentRow(*row) for row in cur.execute(statement("parents", schema)).fetchall()]


def recent_dead(conn: Connection, schema: str, *, limit: int) -> list[DeadJob]:
    """The jobs that died last, latest first."""
    with conn.cursor(row_factory=class_row(DeadJob)) as cur:
        return cur.execute(statement("recent_dead", schema), {"limit": limit}).fetchall()
