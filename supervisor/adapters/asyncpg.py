"""asyncpg: a Connection, or what its pool hands out.

Parameters are texts and numbers only, so that codecs the caller has set (`set_type_codec("jsonb", ...)`) change
nothing. Rows are read by position, whatever `record_class` they are. Without a transaction asyncpg commits each
statement, and so the job at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from asyncpg.connection import Connection as Plain
from asyncpg.exceptions import InterfaceError
from asyncpg.pool import PoolConnectionProxy

from supervisor.db.steps import drive_async
from supervisor.errors import InvalidJob

if TYPE_CHECKING:
    from supervisor.db.steps import Row, Step, Steps

T = TypeVar("T")


def adapt(conn: object) -> Connection | None:
    """The adapter for *conn*; None when it is no connection of asyncpg's."""
    if not isinstance(conn, Plain | PoolConnectionProxy):
        return None
    found: Any = conn
    try:
        closed = found.is_closed()
    except InterfaceError:
        raise InvalidJob("conn", "is an asyncpg connection that was released back to its pool") from None
    if closed:
        raise InvalidJob("conn", "is an asyncpg connection that is closed")
    return Connection(found)


class Connection:
    """A connection of asyncpg's."""

    is_async = True

    def __init__(self, conn: Any) -> None:
        self._conn = conn

    @property
    def driver(self) -> object:
        return self._conn

    def run(self, make: Callable[[bool], Steps[T]]) -> T:
        raise InvalidJob("conn", "is an asyncpg connection, which has to be awaited")

    async def run_async(self, make: Callable[[bool], Steps[T]]) -> T:
        async def fetch(step: Step) -> list[Row]:
            return list(await self._conn.fetch(step.dollars, *step.args))

        return await drive_async(make(self._conn.is_in_transaction()), fetch)
