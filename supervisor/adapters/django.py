"""Django: `django.db.connection`, or `connections["name"]`, in `atomic()`, ATOMIC_REQUESTS, or neither.

Statements go through Django's own cursor. So its transaction has begun as Django begins it, a broken atomic block,
another thread's connection and an event loop are refused by Django as for any query, `execute_wrapper`,
`connection.queries` and the tools that hook them see the statement, and errors are those of `django.db`.

Without `atomic()` Django commits each statement, and so the job at once. `on_commit` is not needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionProxy

from supervisor.adapters.driver import in_transaction
from supervisor.db.steps import drive
from supervisor.errors import InvalidJob

if TYPE_CHECKING:
    from supervisor.db.steps import Row, Step, Steps

T = TypeVar("T")


def adapt(conn: object) -> Connection | None:
    """The adapter for *conn*; None when it is no connection of Django's."""
    # The proxy stands for caches too; those have no vendor.
    if not (isinstance(conn, BaseDatabaseWrapper) or (isinstance(conn, ConnectionProxy) and hasattr(conn, "vendor"))):
        return None
    wrapper: Any = conn
    if wrapper.vendor != "postgresql":
        raise InvalidJob("conn", f"is Django's connection {wrapper.alias!r} to {wrapper.vendor}: must be PostgreSQL")
    if wrapper.closed_in_transaction:
        raise InvalidJob("conn", f"is Django's connection {wrapper.alias!r}, closed inside an atomic block")
    return Connection(wrapper)


class Connection:
    """A connection of Django's; sync only, as Django's transactions are."""

    is_async = False

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper

    @property
    def driver(self) -> object:
        return self._wrapper.connection

    def run(self, make: Callable[[bool], Steps[T]]) -> T:
        with self._wrapper.cursor() as cursor:
            is_open = not self._wrapper.get_autocommit() or in_transaction(self._wrapper.connection)

            def fetch(step: Step) -> list[Row]:
                cursor.execute(step.text, step.args or None)
                return list(cursor.fetchall()) if cursor.description else []

            return drive(make(is_open), fetch)

    async def run_async(self, make: Callable[[bool], Steps[T]]) -> T:
        return self.run(make)
