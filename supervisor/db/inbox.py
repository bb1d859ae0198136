"""The inbox's statements: on a connection that belongs to the caller, and for the consume role.

Always true: a caller's transaction is left as it was, as by enqueueing (enqueue.py).

Elsewhere: checks and promises (supervisor/inbox.py); the SQL functions (functions/120_inbox.sql).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from psycopg import AsyncConnection, AsyncCursor, Cursor
from psycopg.rows import tuple_row

from supervisor.db.enqueue import query_for, savepoint, savepoint_async, schema_errors
from supervisor.db.statements import statement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from supervisor.db.enqueue import AsyncConn, SyncConn

_SEEN: Final = "select {schema}.first_seen(%s::text, %s::text)"


@contextmanager
def noted(conn: SyncConn, schema: str, consumer: str, event_id: str) -> Iterator[bool]:
    """A savepoint in which the event is noted; whether it was new."""
    with Cursor(conn, row_factory=tuple_row) as cur, savepoint(conn, cur):
        with schema_errors(schema):
            row = cur.execute(query_for(_SEEN, schema), (consumer, event_id), prepare=False).fetchone()
        yield bool(row and row[0])


@asynccontextmanager
async def noted_async(conn: AsyncConn, schema: str, consumer: str, event_id: str) -> AsyncIterator[bool]:
    """As `noted`."""
    async with AsyncCursor(conn, row_factory=tuple_row) as cur, savepoint_async(conn, cur):
        with schema_errors(schema):
            await cur.execute(query_for(_SEEN, schema), (consumer, event_id), prepare=False)
            row = await cur.fetchone()
        yield bool(row and row[0])


class Parked(NamedTuple):
    """An event that no job can be made of; headers is JSON text."""

    topic: str
    event_id: str
    reason: str
    body: bytes
    headers: str


async def receive(
    conn: AsyncConnection,
    schema: str,
    *,
    consumer: str,
    events: Sequence[tuple[str, str]],
    parked: Sequence[Parked] = (),
) -> int:
    """In *conn*'s transaction, a job for each of *events* (event id, job as an element of a bulk) that is new, and
    a row for each of *parked* that is; how many jobs there are.
    """
    async with AsyncCursor(conn, row_factory=tuple_row) as cur:
        fresh = 0
        if events:
            document = f"[{','.join(job for _, job in events)}]"
            await cur.execute(statement("receive", schema), (consumer, [known_as for known_as, _ in events], document))
            row = await cur.fetchone()
            fresh = int(row[0]) if row else 0
        for one in parked:
            await cur.execute(
                statement("park_received", schema),
                (consumer, one.topic, one.event_id, one.reason, one.body, one.headers),
            )
        return fresh
