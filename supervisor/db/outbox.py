"""One typed function per statement of a relay: its parts, looking, confirming, refusing.

Elsewhere: the SQL functions (functions/110_relay.sql, 120_inbox.sql); when and how often (outbox/).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from psycopg import AsyncConnection
from psycopg.rows import tuple_row

from supervisor.db.jobs import numbers, quoted
from supervisor.db.statements import statement

CHANNEL_SUFFIX: Final = ".outbox"
"""A schema's channel for relays; no schema's own channel has a dot in it."""


class Lead(NamedTuple):
    """One part that a relay leads, where it begins to read, and how many parts it should have."""

    part: int
    token: int
    low: int
    share: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Which transactions a look could see: none from *next* on, and none of *open*."""

    next: int
    open: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """From PostgreSQL's text form, xmin:xmax:xip,xip."""
        _, following, running = text.split(":")
        return cls(int(following), frozenset(int(each) for each in running.split(",") if each))


class Row(NamedTuple):
    """One pending event as it was read."""

    late: bool
    id: int
    part: int
    topic: str
    key: str | None
    event_id: str
    payload: str
    headers: str
    created_at: float
    attempts: int
    wait_s: float | None


class Refusal(NamedTuple):
    """What became of a refused event."""

    id: int
    parked: bool
    attempts: int
    wait_s: float


async def lead_parts(
    conn: AsyncConnection,
    schema: str,
    *,
    relay: int,
    name: str,
    host: str,
    pid: int,
    version: str,
    broker: str,
    leaving: bool,
    waiting: bool,
    detail: Mapping[str, Any],
    lease_s: float,
) -> list[Lead]:
    """Say that the relay lives, take a fair share of free parts; all it leads now."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        await cur.execute(
            statement("lead_parts", schema),
            {
                "relay": relay,
                "name": name,
                "host": host,
                "pid": pid,
                "version": version,
                "broker": broker,
                "state": "leaving" if leaving else "leading",
                "waiting": waiting,
                "detail": json.dumps(detail),
                "lease_s": lease_s,
            },
        )
        return [Lead(*row) for row in await cur.fetchall()]


async def give_parts(conn: AsyncConnection, schema: str, *, relay: int, parts: Iterable[int]) -> None:
    """Lead these parts no longer; others may take them at once."""
    await conn.execute(statement("give_parts", schema), {"relay": relay, "parts": numbers(parts)})


async def relay_gone(conn: AsyncConnection, schema: str, *, relay: int) -> None:
    """The relay has stopped."""
    await conn.execute(statement("relay_gone", schema), {"relay": relay})


async def raise_low(conn: AsyncConnection, schema: str, *, relay: int, lows: Sequence[tuple[int, int, int]]) -> None:
    """Publish (part, token, low) for who leads these parts next."""
    await conn.execute(
        statement("raise_low", schema),
        {
            "relay": relay,
            "parts": numbers(low[0] for low in lows),
            "tokens": numbers(low[1] for low in lows),
            "lows": numbers(low[2] for low in lows),
        },
    )


async def read_outbox(
    conn: AsyncConnection,
    schema: str,
    *,
    positions: Sequence[tuple[int, int]],
    each: int,
    limit: int,
    since: Snapshot | None,
    most_late: int,
) -> tuple[Snapshot, list[Row]]:
    """What is pending in the parts of *positions* (part, position) and not read before; with this look's snapshot."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        await cur.execute(
            statement("read_outbox", schema),
            {
                "parts": numbers(part for part, _ in positions),
                "pos": numbers(pos for _, pos in positions),
                "each": each,
                "limit": limit,
                "open": numbers(since.open if since else ()),
                "since": None if since is None else str(since.next),
                "most_late": most_late,
            },
        )
        rows = await cur.fetchall()
        return Snapshot.parse(rows[0][0]), [Row(*row[1:]) for row in rows if row[2] is not None]


async def confirm_events(
    conn: AsyncConnection,
    schema: str,
    *,
    relay: int,
    events: Sequence[tuple[int, int, int]],
    keep: bool,
    keep_payload: bool,
) -> int:
    """The broker has these events, (part, token, id) each: they leave the outbox. How many did."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        await cur.execute(
            statement("confirm_events", schema),
            {
                "relay": relay,
                "parts": numbers(event[0] for event in events),
                "tokens": numbers(event[1] for event in events),
                "ids": numbers(event[2] for event in events),
                "keep": keep,
                "keep_payload": keep_payload,
            },
        )
        row = await cur.fetchone()
        return int(row[0]) if row else 0


async def refuse_events(
    conn: AsyncConnection,
    schema: str,
    *,
    relay: int,
    events: Sequence[tuple[int, int, int, str]],
    max_attempts: int,
    base_s: float,
    cap_s: float,
) -> list[Refusal]:
    """The broker will not have these, (part, token, id, reason) each; a missing answer: no longer ours to judge."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        await cur.execute(
            statement("refuse_events", schema),
            {
                "relay": relay,
                "parts": numbers(event[0] for event in events),
                "tokens": numbers(event[1] for event in events),
                "ids": numbers(event[2] for event in events),
                "errors": quoted(event[3] for event in events),
                "max_attempts": max_attempts,
                "base_s": base_s,
                "cap_s": cap_s,
            },
        )
        return [Refusal(*row) for row in await cur.fetchall()]


async def held_keys(conn: AsyncConnection, schema: str, *, parts: Iterable[int]) -> list[tuple[int, str]]:
    """(part, key) of every key that a parked event holds back."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        await cur.execute(statement("held_keys", schema), {"parts": numbers(parts)})
        return [(row[0], row[1]) for row in await cur.fetchall()]


async def tidy(
    conn: AsyncConnection, schema: str, *, keep_sent_s: float, keep_inbox_s: float, keep_parked_s: float, limit: int
) -> int:
    """One round of retention; rows removed, -1 when another process is at it."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        await cur.execute(
            statement("tidy_outbox", schema),
            {
                "keep_sent_s": keep_sent_s,
                "keep_inbox_s": keep_inbox_s,
                "keep_parked_s": keep_parked_s,
                "limit": limit,
            },
        )
        row = await cur.fetchone()
        return int(row[0]) if row else 0
