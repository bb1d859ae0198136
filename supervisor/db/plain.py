"""psycopg's own connections, driven by steps as those of other libraries are: for `supervisor.testing`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, pq
from psycopg.rows import tuple_row

from supervisor.db.steps import drive, drive_async

if TYPE_CHECKING:
    from supervisor.db.enqueue import AsyncConn, SyncConn
    from supervisor.db.steps import Row, Step, Steps

T = TypeVar("T")


class Plain:
    """A psycopg connection, left as it was found: nothing is committed, prepared or closed."""

    def __init__(self, conn: Connection[Any] | AsyncConnection[Any]) -> None:
        self._conn = conn
        self.is_async = isinstance(conn, AsyncConnection)

    @property
    def driver(self) -> object:
        """The connection itself."""
        return self._conn

    @property
    def _in_transaction(self) -> bool:
        return not self._conn.autocommit or self._conn.info.transaction_status != pq.TransactionStatus.IDLE

    def run(self, make: Callable[[bool], Steps[T]]) -> T:
        """Run the steps now."""
        with Cursor(cast("SyncConn", self._conn), row_factory=tuple_row) as cursor:

            def fetch(step: Step) -> list[Row]:
                cursor.execute(step.text.encode(), step.args or None, prepare=False)
                return list(cursor.fetchall()) if cursor.description else []

            return drive(make(self._in_transaction), fetch)

    async def run_async(self, make: Callable[[bool], Steps[T]]) -> T:
        """Run the steps, awaited."""
        async with AsyncCursor(cast("AsyncConn", self._conn), row_factory=tuple_row) as cursor:

            async def fetch(step: Step) -> list[Row]:
                await cursor.execute(step.text.encode(), step.args or None, prepare=False)
                return list(await cursor.fetchall()) if cursor.description else []

            return await drive_async(make(self._in_transaction), fetch)
