"""Vacuums of the tables whose rows come and go, between those of the server itself.

Elsewhere: when, and what is made of the answer (parent/vacuum.py); what people are told of dead rows (health.py).
"""

from typing import NamedTuple

from psycopg import AsyncConnection, sql
from psycopg.errors import Diagnostic
from psycopg.rows import tuple_row

from supervisor.db.statements import statement


class Worn(NamedTuple):
    """A table that more rows have died in than it should hold."""

    table: str
    dead: int
    live: int
    allowed: bool
    """Whether this role may vacuum it."""


async def worn(conn: AsyncConnection, schema: str, *, dead_rows: int, share: float) -> list[Worn]:
    """The tables with at least *dead_rows* dead rows and *share* of the live ones besides, that nobody vacuums now."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        await cur.execute(statement("worn", schema), {"dead_rows": dead_rows, "share": share})
        return [Worn(*row) for row in await cur.fetchall()]


async def vacuum(conn: AsyncConnection, schema: str, table: str) -> bool:
    """Vacuum *table*; False if the server passed it by, since somebody holds a lock that excludes it.

    In one process, and without cutting the file's end off, which would lock out everybody else for a moment.
    """
    warned: list[str | None] = []

    def note(said: Diagnostic) -> None:
        if said.severity_nonlocalized == "WARNING":
            warned.append(said.sqlstate)

    conn.add_notice_handler(note)
    try:
        words = sql.SQL("vacuum (skip_locked, truncate off, parallel 0) {}.{}")
        await conn.execute(words.format(sql.Identifier(schema), sql.Identifier(table)))
    finally:
        conn.remove_notice_handler(note)
    return not warned
