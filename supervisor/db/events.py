"""What people ask of the outbox, and order: its state, relays, events by where they are; replay and drop.

For the command line and the doctor; and the state for metrics. Each statement is bounded.

Elsewhere: what relays send (outbox.py); how it is shown (cli/outbox.py, doctor/, metrics/).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from psycopg import AsyncConnection, Connection
from psycopg.rows import dict_row, tuple_row

from supervisor.db.jobs import numbers
from supervisor.db.statements import statement

MOST_PER_PART: Final = 2000
"""Where counting pending events stops, in each of the 64 parts."""

PLACES: Final = {"pending": "outbox_pending", "parked": "outbox_parked", "sent": "outbox_sent"}


class OutboxState(NamedTuple):
    """How the outbox is doing.

    Attributes:
        pending: Events not published yet, counted up to MOST_PER_PART per part.
        oldest_s: Age of the first of them; None without any.
        retrying: Those that a broker has refused at least once.
        unled: Parts that no living relay leads.
        down: Relays whose broker is away.
    """

    pending: int
    oldest_s: float | None
    retrying: int
    parked: int
    parked_oldest_s: float | None
    unled: int
    relays: int
    down: int
    inbox_parked: int


def state(conn: Connection, schema: str) -> OutboxState:
    """The state now."""
    with conn.cursor(row_factory=tuple_row) as cur:
        row = cur.execute(statement("outbox_state", schema), {"most": MOST_PER_PART}).fetchone()
        assert row is not None
        return OutboxState(*row)


async def state_async(conn: AsyncConnection, schema: str) -> OutboxState:
    """As `state`."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        row = await (await cur.execute(statement("outbox_state", schema), {"most": MOST_PER_PART})).fetchone()
        assert row is not None
        return OutboxState(*row)


def relays(conn: Connection, schema: str) -> list[dict[str, Any]]:
    """The living relays."""
    with conn.cursor(row_factory=dict_row) as cur:
        return cur.execute(statement("outbox_relays", schema)).fetchall()


def events(
    conn: Connection, schema: str, place: str, *, topic: str | None = None, after: int = -1, limit: int = 50
) -> list[dict[str, Any]]:
    """The first events that are pending, parked or sent, beyond the id *after*; sent ones newest first."""
    with conn.cursor(row_factory=dict_row) as cur:
        return cur.execute(
            statement(PLACES[place], schema), {"topic": topic, "after": after, "limit": limit}
        ).fetchall()


def replay(conn: Connection, schema: str, ids: Sequence[int]) -> list[int]:
    """Put parked events back, at their old places; the ids that were parked."""
    return _order(conn, "replay_events", schema, ids)


def drop(conn: Connection, schema: str, ids: Sequence[int]) -> list[int]:
    """Forget parked events; the ids that were parked."""
    return _order(conn, "drop_events", schema, ids)


def _order(conn: Connection, name: str, schema: str, ids: Sequence[int]) -> list[int]:
    with conn.cursor(row_factory=tuple_row) as cur:
        return [row[0] for row in cur.execute(statement(name, schema), {"ids": numbers(ids)}).fetchall()]
