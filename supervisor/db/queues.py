"""Settings of queues, one typed function per statement: pause, limits, and counting what ran before a limit.

    set_queue --> uncounted: nothing is claimed --> await_claims, count --> counted: claims go on

Orders exist for sync and async connections, since they belong to callers; counting is the service's own.

Always true: an order is one statement in the transaction that its connection is in; it waits for claims of
its queue at most, never for a job. Nothing here is committed or rolled back.

Elsewhere: what the settings mean (functions/045_queue.sql); checks and the public names (supervisor/queues.py);
who counts, and when (parent/queues.py, cli/queues.py).
"""

from __future__ import annotations

from collections.abc import Generator
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, errors
from psycopg.rows import tuple_row

from supervisor.db.jobs import numbers
from supervisor.db.statements import statement
from supervisor.errors import SchemaMissing

SyncConn: TypeAlias = Connection[Any]
AsyncConn: TypeAlias = AsyncConnection[Any]

_READ_AT_ONCE: Final = 100_000
_MISSING: Final = (errors.InvalidSchemaName, errors.UndefinedFunction, errors.UndefinedTable)


class QueueSettings(NamedTuple):
    """How a queue is set. `running`: places taken; None where there is no limit. While a limit is not
    `counted` yet, nothing is claimed."""

    name: str
    paused_at: datetime | None
    paused_by: str | None
    max_running: int | None
    limited_at: datetime | None
    counted: bool
    running: int | None

    @property
    def paused(self) -> bool:
        """Whether nothing is claimed from it."""
        return self.paused_at is not None


def order(conn: SyncConn, name: str, schema: str, parameters: dict[str, object]) -> Any:
    """Send the one-value statement *name*; its answer.

    Raises:
        SchemaMissing: the database is not migrated; its error aborted the transaction.
    """
    try:
        with Cursor(conn, row_factory=tuple_row) as cur:
            return _only(cur.execute(statement(name, schema), parameters, prepare=False).fetchone())
    except _MISSING as error:
        raise SchemaMissing(schema) from error


async def order_async(conn: AsyncConn, name: str, schema: str, parameters: dict[str, object]) -> Any:
    """As `order`."""
    try:
        async with AsyncCursor(conn, row_factory=tuple_row) as cur:
            return _only(await (await cur.execute(statement(name, schema), parameters, prepare=False)).fetchone())
    except _MISSING as error:
        raise SchemaMissing(schema) from error


def settings(conn: SyncConn, schema: str) -> list[QueueSettings]:
    """Every queue that has settings, by name."""
    try:
        with Cursor(conn, row_factory=tuple_row) as cur:
            rows = cur.execute(statement("queue_settings", schema), prepare=False).fetchall()
            return [QueueSettings(*row) for row in rows]
    except _MISSING as error:
        raise SchemaMissing(schema) from error


async def settings_async(conn: AsyncConn, schema: str) -> list[QueueSettings]:
    """As `settings`."""
    try:
        async with AsyncCursor(conn, row_factory=tuple_row) as cur:
            rows = await (await cur.execute(statement("queue_settings", schema), prepare=False)).fetchall()
            return [QueueSettings(*row) for row in rows]
    except _MISSING as error:
        raise SchemaMissing(schema) from error


def count(conn: SyncConn, schema: str, queue: QueueSettings) -> bool:
    """Count what runs of *queue* for its limit, whose claims wait for this; whether that was still to do.

    On an autocommit connection. Reads every job of the queue, some 100,000 at a time.

    Raises:
        psycopg.Error 55P03: a claim takes long; nothing was done, try again.
    """
    order(conn, "await_claims", schema, {})
    steps = _counting(queue)
    name, parameters = next(steps)
    while True:
        with Cursor(conn, row_factory=tuple_row) as cur:
            row = cur.execute(statement(name, schema), parameters, prepare=False).fetchone()
        if name == "count_queue":
            return bool(_only(row))
        name, parameters = steps.send(row)


async def count_async(conn: AsyncConn, schema: str, queue: QueueSettings) -> bool:
    """As `count`."""
    await order_async(conn, "await_claims", schema, {})
    steps = _counting(queue)
    name, parameters = next(steps)
    while True:
        async with AsyncCursor(conn, row_factory=tuple_row) as cur:
            row = await (await cur.execute(statement(name, schema), parameters, prepare=False)).fetchone()
        if name == "count_queue":
            return bool(_only(row))
        name, parameters = steps.send(row)


def _counting(queue: QueueSettings) -> Generator[tuple[str, dict[str, object]], Any, None]:
    """The statements that count, one after the other; each is sent the row that the last one brought."""
    ids: list[int] = []
    tokens: list[int] = []
    after: tuple[Any, Any, Any] = (None, None, None)
    while True:
        row = yield (
            "running_of",
            {"queue": queue.name, "priority": after[0], "at": after[1], "id": after[2], "most": _READ_AT_ONCE},
        )
        ids += row[0]
        tokens += row[1]
        after = row[2:]
        if after[0] is None:
            break
    yield (
        "count_queue",
        {"queue": queue.name, "limited_at": queue.limited_at, "ids": numbers(ids), "tokens": numbers(tokens)},
    )


def _only(row: tuple[Any, ...] | None) -> Any:
    if row is None:
        raise RuntimeError("the database's function answered with no row")
    return row[0]
