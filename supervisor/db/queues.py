"""Settings of queues, one typed function per statement: pause, limits, and counting what ran before a limit.

    set_queue --> uncounted: nothing is claimed --> await_claims, running_of ..., count_queue --> claims go on

Orders belong to callers (callers.py); counting is the service's own.

Always true: an order is one statement in the transaction that its connection is in; it waits for claims of
its queue at most, never for a job. Nothing here is committed or rolled back.

Elsewhere: what the settings mean (functions/045_queue.sql); checks and the public names (supervisor/queues.py);
who counts, and when (parent/queues.py, supervisor/queues.py).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, NamedTuple

from psycopg import AsyncCursor, Cursor, errors
from psycopg.rows import tuple_row

from supervisor.db.callers import Rows, rows, rows_async, value
from supervisor.db.enqueue import AsyncConn, SyncConn
from supervisor.db.jobs import numbers
from supervisor.db.statements import statement

_READ_AT_ONCE: Final = 100_000


class QueueSettings(NamedTuple):
    """How a queue is set. `running`: places taken; None where there is no limit. While a limit is not
    `counted` yet, nothing is claimed. At most `rate_limit` jobs start in any `rate_period_s` seconds. `rate_free`: how
    many may start now by its rate; None where there is none."""

    name: str
    paused_at: datetime | None
    paused_by: str | None
    max_running: int | None
    limited_at: datetime | None
    counted: bool
    running: int | None
    rate_limit: int | None = None
    rate_period_s: float | None = None
    paused_s: float | None = None
    rate_free: int | None = None

    @property
    def paused(self) -> bool:
        """Whether nothing is claimed from it."""
        return self.paused_at is not None


def order(conn: SyncConn, name: str, schema: str, parameters: dict[str, object]) -> Any:
    """Send the one-value statement *name*; its answer.

    Raises:
        SchemaMissing: the database is not migrated; its error aborted the transaction.
    """
    return value(rows(conn, name, schema, parameters))


def settings(conn: SyncConn, schema: str) -> list[QueueSettings]:
    """Every queue that has settings, by name."""
    return read_settings(rows(conn, "queue_settings", schema))


async def settings_async(conn: AsyncConn, schema: str) -> list[QueueSettings]:
    """As `settings`."""
    return read_settings(await rows_async(conn, "queue_settings", schema))


def read_settings(found: Rows) -> list[QueueSettings]:
    """The rows of queue_settings."""
    return [QueueSettings(*row) for row in found]


def names(conn: SyncConn, schema: str) -> list[str]:
    """The queues in use, by name."""
    with Cursor(conn, row_factory=tuple_row) as cur:
        return [row[0] for row in cur.execute(statement("queue_names", schema), prepare=False).fetchall()]


class Counting:
    """Counting what runs of a queue for its limit, statement by statement; claims of the queue wait for the end.

    Reads every job of the queue, some 100,000 at a time: what is counted can only become less meanwhile. Each
    statement is a transaction of its own, so the connection is in autocommit mode.
    """

    def __init__(self, queue: QueueSettings) -> None:
        self.queue = queue
        self._after: tuple[Any, Any, Any] = (None, None, None)
        self._ids: list[int] = []
        self._tokens: list[int] = []
        self._next = "await_claims"

    @property
    def reading(self) -> bool:
        """Whether no claim has to be waited for any more."""
        return self._next != "await_claims"

    def step(self, conn: SyncConn, schema: str) -> bool | None:
        """Send the next statement. None: there are more; else whether it was still to be counted.

        Raises:
            psycopg.Error 55P03: a claim takes long; this step is to be sent again.
        """
        with Cursor(conn, row_factory=tuple_row) as cur:
            return self._took(cur.execute(*self._statement(schema), prepare=False).fetchone())

    def try_step(self, conn: SyncConn, schema: str) -> bool | None:
        """As `step`; None also when a claim takes long."""
        try:
            return self.step(conn, schema)
        except errors.LockNotAvailable:
            return None

    async def step_async(self, conn: AsyncConn, schema: str) -> bool | None:
        """As `step`."""
        async with AsyncCursor(conn, row_factory=tuple_row) as cur:
            return self._took(await (await cur.execute(*self._statement(schema), prepare=False)).fetchone())

    def _statement(self, schema: str) -> tuple[bytes, dict[str, object]]:
        return statement(self._next, schema), {
            "queue": self.queue.name,
            "priority": self._after[0],
            "at": self._after[1],
            "id": self._after[2],
            "most": _READ_AT_ONCE,
            "limited_at": self.queue.limited_at,
            "ids": numbers(self._ids),
            "tokens": numbers(self._tokens),
        }

    def _took(self, row: tuple[Any, ...] | None) -> bool | None:
        if self._next == "count_queue":
            return bool(value([row] if row else []))
        if self._next == "running_of" and row is not None:
            self._ids += row[0]
            self._tokens += row[1]
            self._after = row[2], row[3], row[4]
        self._next = "count_queue" if self._next == "running_of" and self._after[0] is None else "running_of"
        return None
