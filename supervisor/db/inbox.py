"""The inbox's statements, on a connection that belongs to the caller.

Always true: a caller's transaction is left as it was, as by enqueueing (enqueue.py).

Elsewhere: checks and promises (supervisor/inbox.py); the SQL functions (functions/120_inbox.sql).
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

from psycopg import AsyncCursor, Cursor
from psycopg.rows import tuple_row

from supervisor.db.enqueue import query_for, savepoint, savepoint_async, schema_errors

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
