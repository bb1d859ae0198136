"""Connections of other libraries: Django, SQLAlchemy, asyncpg. The caller's own, in the caller's transaction.

    of(conn) --> Adapter --> run(steps) | run_async(steps)      steps: supervisor/db/steps.py

A connection is recognised by its type. A library that nobody has imported cannot have made it, so none is
imported here; each adapter is loaded with the first connection of its library.

Always true: what is sent goes through the library, which sees it as a statement of the caller's: its transaction
begins as usual, its hooks and logs show it, its errors are its own classes. Nothing is committed, rolled back or
closed; only an autocommit connection, which has no transaction of the caller's, gets one for a bulk of many parts.

Elsewhere: what users pass, for type checkers (protocols.py); psycopg's own connections (supervisor/db/enqueue.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from supervisor.db.steps import Steps

T = TypeVar("T")

#: The module that has been imported by whoever has a connection of the library: the room here.
_ROOMS: Final = {
    "django.db.backends.base.base": "supervisor.adapters.django",
    "sqlalchemy.engine": "supervisor.adapters.sqlalchemy",
    "asyncpg.connection": "supervisor.adapters.asyncpg",
}

#: As a list in an error's text.
SUPPORTED: Final = (
    "a psycopg Connection or AsyncConnection, an asyncpg Connection, a Django connection, or a SQLAlchemy "
    "Connection, Session, AsyncConnection or AsyncSession"
)


class Adapter(Protocol):
    """One connection of another library, looked at and found usable.

    Each run takes a function that makes the steps: it is told whether a transaction is open, or will be by
    the first statement.
    """

    @property
    def is_async(self) -> bool:
        """Which of the two runs there is."""
        ...

    @property
    def driver(self) -> object:
        """The driver's own connection below, once a statement was run."""
        ...

    def run(self, make: Callable[[bool], Steps[T]]) -> T:
        """Run the steps now."""
        ...

    async def run_async(self, make: Callable[[bool], Steps[T]]) -> T:
        """Run the steps, awaited."""
        ...


def of(conn: object) -> Adapter | None:
    """The adapter for *conn*; None when no library that is loaded knows it.

    Raises:
        InvalidJob: it is one of theirs and cannot be used: closed, not of PostgreSQL, not started.
    """
    for theirs, room in _ROOMS.items():
        if theirs in sys.modules:
            found: Adapter | None = import_module(room).adapt(conn)
            if found is not None:
                return found
    return None
