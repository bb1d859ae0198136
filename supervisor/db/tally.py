"""The statements of the tally: how many jobs ended how, by minute.

Elsewhere: what is added and when (parent/tally.py); pruning (functions/090_history.sql).
"""

from collections.abc import Mapping

from psycopg import AsyncConnection
from psycopg.rows import tuple_row

from supervisor.db.jobs import numbers, quoted
from supervisor.db.statements import statement

Row = tuple[int, str, str]
"""Minute (seconds since 1970), queue, event."""


async def add(conn: AsyncConnection, schema: str, rows: Mapping[Row, int]) -> None:
    """Add *rows* to what is there."""
    await conn.execute(
        statement("add_tally", schema),
        {
            "minutes": numbers(minute for minute, _, _ in rows),
            "queues": quoted(queue for _, queue, _ in rows),
            "events": quoted(event for _, _, event in rows),
            "counts": numbers(rows.values()),
        },
    )


async def transaction_id(conn: AsyncConnection, schema: str) -> str:
    """The name of the transaction that *conn* is in."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        row = await (await cur.execute(statement("transaction_id", schema))).fetchone()
        assert row is not None
        return str(row[0])


async def fate(conn: AsyncConnection, schema: str, xid: str) -> str | None:
    """What became of that transaction: committed, aborted, in progress, or None where nobody knows any more."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        row = await (await cur.execute(statement("transaction_fate", schema), {"xid": xid})).fetchone()
        return row[0] if row else None
