"""SQLAlchemy: Connection, Session, AsyncConnection, AsyncSession and scoped sessions, on any PostgreSQL driver.

Statements go through the Connection (a Session's is the one of its transaction), by `exec_driver_sql`: the
transaction begins as for any statement, events and logs show it, errors are those of `sqlalchemy.exc`. The async
classes run the same code in their greenlet (`run_sync`), so psycopg and asyncpg below need nothing of their own.

A Session is not flushed: to enqueue with an id the database gives, flush before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.engine import Connection as Plain
from sqlalchemy.exc import UnboundExecutionError

from supervisor.adapters.driver import in_transaction
from supervisor.db.steps import drive
from supervisor.errors import InvalidJob

if TYPE_CHECKING:
    from supervisor.db.steps import Row, Step, Steps

T = TypeVar("T")


def adapt(conn: object) -> Connection | None:
    """The adapter for *conn*; None when it is nothing of SQLAlchemy's that has a transaction."""
    if isinstance(conn, Plain):
        return Connection(_usable(conn, conn), is_async=False)
    orm, aio = sys.modules.get("sqlalchemy.orm"), sys.modules.get("sqlalchemy.ext.asyncio")
    found: Any = conn
    if orm is not None:
        if isinstance(found, orm.scoped_session):
            found = found.registry()
        if isinstance(found, orm.Session):
            return Connection(_usable(found, found), is_async=False)
    if aio is not None:
        if isinstance(found, aio.async_scoped_session):
            found = found.registry()
        if isinstance(found, aio.AsyncConnection):
            if found.sync_connection is None:
                raise InvalidJob("conn", "is a SQLAlchemy AsyncConnection that is not started: use `async with`")
            return Connection(_usable(found, found.sync_connection), is_async=True)
        if isinstance(found, aio.AsyncSession):
            return Connection(_usable(found, found.sync_session), is_async=True)
    return None


def _usable(conn: Any, sync: Any) -> Any:
    """*conn*, or InvalidJob; *sync* is the Connection or Session that it is, or stands for."""
    if isinstance(sync, Plain):
        if sync.closed:
            raise InvalidJob("conn", "is a SQLAlchemy connection that is closed")
        dialect = sync.dialect.name
    else:
        try:
            dialect = sync.get_bind().dialect.name
        except UnboundExecutionError:
            raise InvalidJob(
                "conn",
                "is a SQLAlchemy session without one engine to choose: "
                "pass session.connection(bind_arguments={...}), awaited if it is async",
            ) from None
    if dialect != "postgresql":
        raise InvalidJob("conn", f"is SQLAlchemy's for {dialect}: must be PostgreSQL")
    return conn


class Connection:
    """A connection or session of SQLAlchemy's."""

    def __init__(self, conn: Any, *, is_async: bool) -> None:
        self._conn = conn
        self.is_async = is_async

    @property
    def driver(self) -> object:
        found = self._conn
        if self.is_async:
            found = found.sync_session if hasattr(found, "sync_session") else found.sync_connection
        return _core(found).connection.driver_connection

    def run(self, make: Callable[[bool], Steps[T]]) -> T:
        return _run(self._conn, make)

    async def run_async(self, make: Callable[[bool], Steps[T]]) -> T:
        result: T = await self._conn.run_sync(_run, make)
        return result


def _core(sync: Any) -> Plain:
    """The Connection that *sync* is; of a Session, the one of its transaction."""
    found: Plain = sync if isinstance(sync, Plain) else sync.connection()
    return found


def _run(sync: Any, make: Callable[[bool], Steps[T]]) -> T:
    conn = _core(sync)
    dollars = conn.dialect.paramstyle == "numeric_dollar"

    def fetch(step: Step) -> list[Row]:
        result = conn.exec_driver_sql(step.dollars if dollars else step.text, step.args or None)
        return list(result.fetchall()) if result.returns_rows else []

    pooled = conn.connection
    autocommit = bool(getattr(pooled.dbapi_connection, "autocommit", False))
    return drive(make(not autocommit or in_transaction(pooled.driver_connection)), fetch)
