"""What users may pass as their connection, for type checkers: told apart by members that only one of them has.

Protocols, so that neither this package nor its users need the libraries or their stubs. At run time the type
decides (each library's room).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from supervisor.db.enqueue import AsyncConn, SyncConn


class DjangoConnection(Protocol):
    """`django.db.connection`, or one of `django.db.connections`."""

    @property
    def vendor(self) -> str: ...
    @property
    def in_atomic_block(self) -> bool: ...


class SqlAlchemyConnection(Protocol):
    """`sqlalchemy.Connection`."""

    @property
    def begin_twophase(self) -> Any: ...
    @property
    def exec_driver_sql(self) -> Any: ...


class SqlAlchemySession(Protocol):
    """`sqlalchemy.orm.Session`, or a `scoped_session`."""

    @property
    def bulk_save_objects(self) -> Any: ...
    @property
    def connection(self) -> Any: ...


class SqlAlchemyAsyncConnection(Protocol):
    """`sqlalchemy.ext.asyncio.AsyncConnection`."""

    @property
    def get_raw_connection(self) -> Any: ...
    @property
    def run_sync(self) -> Any: ...


class SqlAlchemyAsyncSession(Protocol):
    """`sqlalchemy.ext.asyncio.AsyncSession`, or an `async_scoped_session`."""

    @property
    def stream_scalars(self) -> Any: ...
    @property
    def identity_map(self) -> Any: ...


class AsyncpgConnection(Protocol):
    """`asyncpg.Connection`, or what a pool of it hands out."""

    @property
    def is_in_transaction(self) -> Any: ...
    @property
    def copy_records_to_table(self) -> Any: ...


UserConn: TypeAlias = "SyncConn | DjangoConnection | SqlAlchemyConnection | SqlAlchemySession"
AsyncUserConn: TypeAlias = "AsyncConn | SqlAlchemyAsyncConnection | SqlAlchemyAsyncSession | AsyncpgConnection"
