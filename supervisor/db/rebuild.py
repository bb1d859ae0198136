"""What rebuilding an index takes: a connection of its own, one typed function per statement.

    opened --> lead --> rights --> obstacles --> reindex          on that connection
                                                  note, waiters   on another one, meanwhile and after it

Always true: a connection that rebuilds has a limit for each wait and for the whole; whoever stops waiting for it hangs
up, and the server ends the statement within about a second. Nothing is sent by a connection that leads through a
transaction pooler: what is set there would be another's.

Elsewhere: what is rebuilt and when (parent/rebuild.py); sizes (health.py).
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

from psycopg import AsyncConnection, errors, sql
from psycopg.rows import tuple_row

from supervisor.db.health import OURS, Index, indexes
from supervisor.db.house import HouseConnection
from supervisor.db.link import connect, service_conninfo
from supervisor.db.roles import TABLES
from supervisor.db.statements import statement

_LEFT: Final = re.compile(r"(.+)_cc(?:new|old)\d*")
# Concurrent builds of 14.0 to 14.3 could leave rows out of the index.
_CORRUPTING: Final = range(14_00_00, 14_00_04)


class Past(NamedTuple):
    """The last rebuild of an index.

    Attributes:
        outcome: begun (whoever began it was killed, or is at it), failed, done.
        next_s: Seconds until it may be tried again; below 0: since then. wait_s: how long that wait was.
        after_bytes: None where it did not end well.
    """

    name: str
    outcome: str
    next_s: float
    wait_s: float
    before_bytes: int
    after_bytes: int | None


class Rights(NamedTuple):
    """What this role may do on this server."""

    version: int
    standby: bool
    role: str
    may_rebuild: bool
    may_drop: bool

    @property
    def corrupting(self) -> bool:
        """Whether a concurrent build may leave rows out."""
        return self.version in _CORRUPTING


class Obstacle(NamedTuple):
    """What a rebuild would wait for: a lock, another build, a prepared transaction, a transaction.

    Attributes:
        key: The same one has the same key at the next look.
        age_s: Seconds since a transaction began; None where that is not known.
    """

    kind: str
    key: str
    name: str | None
    pid: int | None
    age_s: float | None


class State(NamedTuple):
    """The indexes of the queue's own tables, and what failed rebuilds of them have left: (left, index of)."""

    indexes: tuple[Index, ...]
    left: tuple[tuple[Index, str], ...]


async def state(conn: AsyncConnection, schema: str) -> State:
    """What there is. A rebuild that is under way looks like one that failed: see `obstacles`."""
    ours = [index for index in await indexes(conn, schema) if index.table in TABLES]
    valid = {(index.table, index.name) for index in ours if index.valid}
    left = [
        (index, name[1])
        for index in ours
        if not index.valid and (name := _LEFT.fullmatch(index.name)) and (index.table, name[1]) in valid
    ]
    return State(tuple(index for index in ours if index.valid), tuple(left))


@asynccontextmanager
async def opened(
    conninfo: str, schema: str, *, connect_timeout_s: float, lock_s: float, work_s: float
) -> AsyncIterator[HouseConnection | None]:
    """A connection that leads the rebuilding, closed afterwards; None where another one leads.

    Args:
        lock_s: The longest wait for one lock, or for one transaction. work_s: the longest statement.

    Raises:
        DatabaseUnavailable: there is no connection to be had.
        Pooled: the address leads through a transaction pooler.
    """
    conn = await connect(
        service_conninfo(conninfo, f"{OURS} rebuild", connect_timeout_s),
        statement_timeout_s=connect_timeout_s,
        connect_timeout_s=connect_timeout_s,
    )
    try:
        if conn.prepare_threshold is None:
            raise Pooled
        [[leads]] = await _rows(conn, "rebuild_lead", schema)
        if leads:
            with suppress(errors.InvalidParameterValue):  # a system that cannot tell: there is the time limit
                await conn.execute(statement("rebuild_watch", schema))
            limits = {"lock_ms": int(lock_s * 1000), "work_ms": int(work_s * 1000)}
            await conn.execute(statement("rebuild_limits", schema), limits)
        yield conn if leads else None
    finally:
        await conn.close()


class Pooled(Exception):
    """The address leads through a transaction pooler."""


async def rights(conn: AsyncConnection, schema: str, table: str) -> Rights | None:
    """Whether this role may rebuild indexes of *table* here; None: there is no such table any more."""
    found = await _rows(conn, "rebuild_rights", schema, table_name=table)
    return Rights(*found[0]) if found else None


async def past(conn: AsyncConnection, schema: str) -> dict[str, Past]:
    """The last rebuild of each index, by its name."""
    return {row[0]: Past(*row) for row in await _rows(conn, "rebuilds", schema)}


async def obstacles(conn: AsyncConnection, schema: str, table: str) -> list[Obstacle]:
    """What a rebuild of an index of *table* would wait for now, however young it is."""
    return [Obstacle(*row) for row in await _rows(conn, "rebuild_obstacles", schema, table_name=table)]


async def waiter(conn: AsyncConnection, schema: str, table: str, pid: int) -> tuple[str, int] | None:
    """Name and process of somebody who waits for *table* until the session *pid* is done with it."""
    found = await _rows(conn, "rebuild_waiters", schema, table_name=table, pid=pid)
    return (found[0][0], found[0][1]) if found else None


async def note(
    conn: AsyncConnection,
    schema: str,
    index: str,
    outcome: str,
    *,
    wait_s: float,
    before: int,
    after: int | None = None,
    reason: str | None = None,
) -> None:
    """Remember that a rebuild of *index* began or ended, and that it is not tried again for *wait_s* seconds."""
    await conn.execute(
        statement("note_rebuild", schema),
        {
            "index_name": index,
            "outcome": outcome,
            "wait_s": wait_s,
            "before_bytes": before,
            "after_bytes": after,
            "reason": reason,
        },
    )


async def reindex(conn: AsyncConnection, schema: str, index: str) -> int:
    """Rebuild *index* while everything runs; its bytes afterwards.

    Raises:
        psycopg.Error: it was not rebuilt, or the one it replaces was not dropped; either leaves an index behind.
    """
    await conn.execute(sql.SQL("reindex index concurrently {}").format(sql.Identifier(schema, index)))
    return sum(row[0] for row in await _rows(conn, "rebuild_size", schema, index_name=index))


async def drop(conn: AsyncConnection, schema: str, index: str) -> None:
    """Drop *index* while everything runs; gone already is fine."""
    await conn.execute(sql.SQL("drop index concurrently if exists {}").format(sql.Identifier(schema, index)))


async def _rows(conn: AsyncConnection, name: str, schema: str, **params: Any) -> list[Any]:
    async with conn.cursor(row_factory=tuple_row) as cur:
        return await (await cur.execute(statement(name, schema), params or None)).fetchall()
