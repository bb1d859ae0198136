"""Finish a job inside its handler's own transaction: the writes and the end of the job commit together."""

from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.rows import tuple_row

from supervisor.db.jobs import Ack, numbers
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


async def finish(conn: AsyncConnection[Any], schema: str, session: int, ack: Ack, keep: int) -> bool:
    """Acknowledge one job in *conn*'s open transaction; False when its lease was lost."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        try:
            await cur.execute(statement("finish", schema), _parameters(session, ack, keep))
        except psycopg.Error as error:
            if error.sqlstate == SESSION_CLOSED:
                return False
            raise
        row = await cur.fetchone()
    return bool(row and row[0])


def finish_sync(conn: Connection[Any], schema: str, session: int, ack: Ack, keep: int) -> bool:
    """The same on a sync connection."""
    with conn.cursor(row_factory=tuple_row) as cur:
        try:
            cur.execute(statement("finish", schema), _parameters(session, ack, keep))
        except psycopg.Error as error:
            if error.sqlstate == SESSION_CLOSED:
                return False
            raise
        row = cur.fetchone()
    return bool(row and row[0])
