"""Finish a job inside its handler's own transaction: the writes and the end of the job commit together."""

from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.rows import tuple_row

from supervisor.db.jobs import Ack, numbers, with_results
from supervisor.db.statements import statement

SESSION_CLOSED: Final = "QS001"


def _parameters(session: int, ack: Ack, keep: int) -> dict[str, object]:
    return {
        "session": session,
        "ids": numbers([ack.id]),
        "claims": numbers([ack.token]),
        "took": numbers([ack.took_s]),
        "keep": keep,
    }


async def finish(
    conn: AsyncConnection[Any],
    schema: str,
    session: int,
    ack: Ack,
    keep: int,
    result: str | None = None,
    kept_s: float = 0.0,
) -> bool:
    """Acknowledge one job in *conn*'s open transaction; False when its lease was lost.

    A *result*, JSON text, is kept for *kept_s* seconds.
    """
    text, parameters = _statement(schema, session, ack, keep, result, kept_s)
    async with conn.cursor(row_factory=tuple_row) as cur:
        try:
            await cur.execute(text, parameters)
        except psycopg.Error as error:
            if error.sqlstate == SESSION_CLOSED:
                return False
            raise
        row = await cur.fetchone()
    return bool(row and row[0])


def finish_sync(
    conn: Connection[Any],
    schema: str,
    session: int,
    ack: Ack,
    keep: int,
    result: str | None = None,
    kept_s: float = 0.0,
) -> bool:
    """The same on a sync connection."""
    text, parameters = _statement(schema, session, ack, keep, result, kept_s)
    with conn.cursor(row_factory=tuple_row) as cur:
        try:
            cur.execute(text, parameters)
        except psycopg.Error as error:
            if error.sqlstate == SESSION_CLOSED:
                return False
            raise
        row = cur.fetchone()
    return bool(row and row[0])


def _statement(
    schema: str, session: int, ack: Ack, keep: int, result: str | None, kept_s: float
) -> tuple[bytes, dict[str, object]]:
    """What to send; its first row's first value is true when the acknowledgement counted."""
    if result is None:
        return statement("finish", schema), _parameters(session, ack, keep)
    return statement("finish_with_results", schema), with_results(session, [(ack, result, kept_s)], keep)
