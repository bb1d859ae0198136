"""Entries of cron, one typed function per statement.

    declare --> plan --> fire, fire, ...      the service, on its own connections
    listed, order                             operators, in the transaction that their connection is in

Always true: one statement is the whole of a firing; what is sent twice happens once.

Elsewhere: what the statements promise (functions/085_cron.sql); when entries are due (supervisor/cron.py);
who declares and fires (parent/cron.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from psycopg import AsyncConnection, AsyncCursor
from psycopg.rows import tuple_row

from supervisor.cron import Due, Entry
from supervisor.db.callers import Rows, rows, rows_async
from supervisor.db.enqueue import AsyncConn, SyncConn
from supervisor.db.statements import statement
from supervisor.errors import InvalidSchedule


class Open(NamedTuple):
    """An entry that is neither paused nor retired, with what is in force. *defined*: by a living supervisor."""

    name: str
    kind: str
    revision: int
    cron: str
    tz: str
    missed: int
    next_at: datetime | None
    problem: str | None
    now: datetime
    defined: bool


class Schedule(NamedTuple):
    """An entry as people see it. `cron`, `tz`, `missed`: as in force; `defined_...`: as the handler says."""

    name: str
    kind: str
    cron: str
    tz: str
    missed: int
    queue: str
    defined_cron: str
    defined_tz: str
    defined_missed: int
    set_at: datetime | None
    set_by: str | None
    paused_at: datetime | None
    paused_by: str | None
    retired_at: datetime | None
    next_at: datetime | None
    problem: str | None
    fired: int
    skipped: int
    last_tick: datetime | None
    last_at: datetime | None
    last_job: int | None
    now: datetime

    @property
    def state(self) -> str:
        """retired, paused, broken (a problem keeps it from being due) or open."""
        if self.retired_at is not None:
            return "retired"
        return "paused" if self.paused_at is not None else "broken" if self.problem is not None else "open"

    @property
    def overdue_s(self) -> float:
        """For how long its next tick has been due; 0 where nobody is to fire it."""
        if self.state in ("retired", "paused") or self.next_at is None:
            return 0.0
        return max(0.0, (self.now - self.next_at).total_seconds())


class Fired(NamedTuple):
    """A firing that this caller has done: its last job, and how late its last tick was."""

    job: int | None
    late_s: float


async def declare(
    conn: AsyncConnection, schema: str, kinds: Sequence[str], entries: Iterable[Entry], *, ttl_s: float
) -> list[str] | None:
    """Say what runs here; the names of entries that changed by it. None: somebody else is at it, try again."""
    documents = [
        {**entry._asdict(), "payload": json.loads(entry.payload), "options": json.loads(entry.options)}
        for entry in entries
    ]
    async with AsyncCursor(conn, row_factory=tuple_row) as cur:
        await cur.execute(
            statement("declare_schedules", schema),
            {"kinds": list(kinds), "entries": json.dumps(documents), "ttl_s": ttl_s},
        )
        row = await cur.fetchone()
        return None if row is None else row[0]


async def open_entries(conn: AsyncConnection, schema: str) -> list[Open]:
    """The entries that are fired, those to be planned and the earliest first."""
    async with AsyncCursor(conn, row_factory=tuple_row) as cur:
        return [Open(*row) for row in await (await cur.execute(statement("open_schedules", schema))).fetchall()]


async def plan(
    conn: AsyncConnection, schema: str, entry: Open, next_at: datetime | None, problem: str | None = None
) -> bool:
    """Say when *entry* is due next, or what keeps that from being known; whether that was new."""
    async with AsyncCursor(conn, row_factory=tuple_row) as cur:
        await cur.execute(
            statement("plan_schedule", schema),
            {"name": entry.name, "revision": entry.revision, "next_at": next_at, "problem": problem},
        )
        row = await cur.fetchone()
        return bool(row and row[0])


async def fire(conn: AsyncConnection, schema: str, entry: Open, due: Due) -> Fired | None:
    """Fire what is due of *entry*; None if it was not there to be fired any more."""
    async with AsyncCursor(conn, row_factory=tuple_row) as cur:
        await cur.execute(
            statement("fire_schedule", schema),
            {
                "name": entry.name,
                "revision": entry.revision,
                "at": entry.next_at,
                "ticks": list(due.fire),
                "skipped": due.skipped,
                "following": due.next,
            },
        )
        row = await cur.fetchone()
        return None if row is None else Fired(row[0], row[1])


def listed(conn: SyncConn, schema: str) -> list[Schedule]:
    """Every entry, retired ones last.

    Raises:
        SchemaMissing: the database is not migrated; its error aborted the transaction.
    """
    return read_schedules(rows(conn, "schedules", schema))


async def listed_async(conn: AsyncConn, schema: str) -> list[Schedule]:
    """As `listed`."""
    return read_schedules(await rows_async(conn, "schedules", schema))


def read_schedules(found: Rows) -> list[Schedule]:
    """The rows of schedules."""
    return [Schedule(*row) for row in found]


def order(conn: SyncConn, name: str, schema: str, parameters: dict[str, object]) -> tuple[Any, ...]:
    """Send the order *name* (pause_schedule, ...); its row.

    Raises:
        InvalidSchedule: the database refused it; its error aborted the transaction.
        SchemaMissing: as `listed`.
    """
    return first(rows(conn, name, schema, parameters, InvalidSchedule))


def first(found: Rows) -> tuple[Any, ...]:
    """The row that an order answers with."""
    return found[0] if found else ()
