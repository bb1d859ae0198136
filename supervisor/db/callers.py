"""One statement on a psycopg connection that belongs to the caller, and the same on an async one.

    rows(conn, "queue_settings", schema)            at once
    await rows_async(conn, "queue_settings", ...)   awaited
    ask(conn, "pause_queue", schema, ...)           whichever *conn* is: an answer, or what is to be awaited for it

Always true: it is the whole of what is sent, in the transaction that the connection is in. Nothing is committed,
rolled back or prepared; the connection's own row factory is left alone.

Elsewhere: enqueueing on such connections (enqueue.py); on those of other libraries (steps.py).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar, cast

from psycopg import AsyncCursor, Cursor, errors
from psycopg.rows import tuple_row

from supervisor.db.enqueue import AsyncConn, SyncConn, is_async, schema_errors
from supervisor.db.link import first_line
from supervisor.db.statements import statement

Rows: TypeAlias = "list[tuple[Any, ...]]"
Wrong: TypeAlias = "Callable[[str, str], Exception]"
T = TypeVar("T")


def rows(
    conn: SyncConn, name: str, schema: str, parameters: Mapping[str, object] | None = None, refused: Wrong | None = None
) -> Rows:
    """Send the statement *name*; its rows.

    Args:
        refused: What is raised, with the field and the reason, where the database's function refuses a value;
            None: psycopg's error as it is.

    Raises:
        SchemaMissing: the database is not migrated.

    Each error of the database has aborted the transaction.
    """
    with _told(schema, refused), Cursor(conn, row_factory=tuple_row) as cur:
        return cur.execute(statement(name, schema), parameters, prepare=False).fetchall()


async def rows_async(
    conn: AsyncConn,
    name: str,
    schema: str,
    parameters: Mapping[str, object] | None = None,
    refused: Wrong | None = None,
) -> Rows:
    """As `rows`."""
    with _told(schema, refused):
        async with AsyncCursor(conn, row_factory=tuple_row) as cur:
            return await (await cur.execute(statement(name, schema), parameters, prepare=False)).fetchall()


def ask(
    conn: SyncConn | AsyncConn,
    name: str,
    schema: str,
    parameters: Mapping[str, object] | None,
    read: Callable[[Rows], T],
    *,
    wrong: Wrong,
    refused: Wrong | None = None,
) -> T | Coroutine[Any, Any, T]:
    """What *read* makes of the rows of the statement *name*; to be awaited where *conn* is async.

    Args:
        wrong: What is raised, with the field and the reason, for what is no psycopg connection.
        refused: As of `rows`.
    """
    awaited = is_async(conn)
    if awaited is None:
        raise wrong("conn", f"must be a psycopg Connection or AsyncConnection, not {type(conn).__name__}")
    if not awaited:
        return read(rows(cast("SyncConn", conn), name, schema, parameters, refused))

    async def later() -> T:
        return read(await rows_async(cast("AsyncConn", conn), name, schema, parameters, refused))

    return later()


def value(found: Rows) -> Any:
    """The one value of the one row that a function answers with."""
    if not found:
        raise RuntimeError("the database's function answered with no row")
    return found[0][0]


@contextmanager
def _told(schema: str, refused: Wrong | None) -> Iterator[None]:
    try:
        with schema_errors(schema):
            yield
    except errors.InvalidParameterValue as error:
        if refused is None:
            raise
        # The function's own text names the field first.
        field, _, reason = first_line(error).partition(" ")
        raise refused(field.rstrip(":"), reason) from None
