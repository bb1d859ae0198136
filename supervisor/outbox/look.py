"""Reading the outbox: what is pending, each row once, however late it was committed.

    look --rows--> book          again at once while there is more, else when told, or after a while
      '-- snapshot, kept: the next look asks for rows of the transactions that were open in it

Per part the look begins above the highest id it has read; what may appear below that is found by its transaction
(db/functions/110_relay.sql says why nothing is missed and why no dead row is walked over). On top of it:

    sweep    each part is read from its beginning about once a minute, one after the other, at a duty cycle of 1/50:
             what an odd hand has written is found too
    settle   where a new leader may begin: a position that was read, once every transaction that was open then has
             ended; published when that saves it much

Always true: after `reset` (a lost connection, another server) every part is read from its beginning.

Elsewhere: what becomes of rows (book.py); when to look (relay.py).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from supervisor.db import outbox
from supervisor.db.link import Link
from supervisor.errors import DatabaseUnavailable
from supervisor.outbox.book import Book, Part
from supervisor.outbox.event import Event
from supervisor.settings import Settings

_MOST_LATE: Final = 2000
_SWEEP_ALL_S: Final = 60.0
_DUTY: Final = 50
_WORTH_PUBLISHING: Final = 20_000
_SETTLE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Settled:
    """Positions that are settled once none of these transactions is open any more."""

    positions: dict[int, int]
    open: frozenset[int]


class Look:
    """The reading side of one relay.

    Attributes:
        open: Transactions that were open at the last look: rows of theirs may come late.
    """

    def __init__(self, link: Link, settings: Settings, book: Book, *, relay: int) -> None:
        self._link = link
        self._schema = settings.schema_
        self._book = book
        self._relay = relay
        self._seen: outbox.Snapshot | None = None
        self._late_left: frozenset[int] = frozenset()
        self._turn = 0
        self._next_sweep = 0.0
        self._swept = 0
        self._sweep_cost = 0.0
        self._next_settle = 0.0
        self._settled: Settled | None = None
        self._lows: dict[int, tuple[int, int]] = {}

    @property
    def open(self) -> frozenset[int]:
        """Transactions whose rows may yet come."""
        return self._seen.open if self._seen else frozenset()

    def reset(self) -> None:
        """Trust nothing that was seen."""
        self._seen = None
        self._settled = None
        self._late_left = frozenset()
        for part in self._book.parts.values():
            part.pos = -1
            part.more = True

    async def look(self, room: int) -> int:
        """Read what is new, at most about *room* events; how many rows there were. Raises what Link.call does."""
        book, began = self._book, time.monotonic()
        parts = [part for part in book.parts.values() if not part.retiring]
        if not parts or room < 1:
            return 0
        swept = self._sweep_next(parts, began)
        self._turn = (self._turn + 1) % len(parts)
        parts = parts[self._turn :] + parts[: self._turn]
        busy = sum(part.more for part in parts)
        each = max(1, -(-room // max(1, busy)))
        since = self._seen
        if since is not None and self._late_left:
            since = outbox.Snapshot(since.next, since.open | self._late_left)
        book.begin_look()
        positions = [(part.number, part.pos) for part in parts]
        try:
            snapshot, rows = await self._link.call(
                lambda conn: outbox.read_outbox(
                    conn,
                    self._schema,
                    positions=positions,
                    each=each,
                    limit=room,
                    since=since,
                    most_late=_MOST_LATE,
                )
            )
        except DatabaseUnavailable:
            self.reset()
            raise
        if since is not None and snapshot.next < since.next:
            self.reset()  # another server, which does not know all of what was seen
            return len(rows)
        if swept:
            self._sweep_cost = time.monotonic() - began
        late = [row for row in rows if row.late]
        # Not all of them: what is left is asked for again, as if those had been open until now.
        whole = len(late) < _MOST_LATE
        self._late_left = frozenset() if whole or since is None else since.open
        self._seen = snapshot if whole or since is None else outbox.Snapshot(since.next, snapshot.open | since.open)
        self._take(rows, dict(positions), each, room)
        if time.monotonic() >= self._next_settle:
            self._next_settle = time.monotonic() + _SETTLE_S
            await self._settle()
        return len(rows)

    def _take(self, rows: list[outbox.Row], asked: dict[int, int], each: int, room: int) -> None:
        """Rows into the book, in order of id, and positions up."""
        counts: dict[int, int] = {}
        highest: dict[int, int] = {}
        for row in rows:
            if not row.late:
                counts[row.part] = counts.get(row.part, 0) + 1
                highest[row.part] = max(row.id, highest.get(row.part, -1))
        fresh = sum(counts.values())
        for number, pos in asked.items():
            part = self._book.parts.get(number)
            if part is not None and part.pos == pos:
                # Not reached when the look's limit was used up before its turn.
                part.more = counts.get(number, 0) >= each or (fresh >= room and part.more)
        rows.sort(key=lambda row: row.id)
        self._book.answer(((_event(row), row.wait_s or 0.0) for row in rows), asked, highest)

    def _sweep_next(self, parts: list[Part], now: float) -> bool:
        """Read the next part in turn from its beginning, if it is time."""
        if now < self._next_sweep or self._seen is None:
            return False
        self._next_sweep = now + max(_SWEEP_ALL_S / len(parts), _DUTY * self._sweep_cost)
        part = parts[self._swept % len(parts)]
        self._swept += 1
        part.pos, part.more = -1, True
        return True

    async def _settle(self) -> None:
        """Raise the published low of parts whose beginning has moved far."""
        seen = self._seen
        if seen is None:
            return
        if self._settled is not None and self._settled.open & seen.open:
            return  # one of them may still commit a row below these positions
        lows = []
        for number, pos in (self._settled.positions if self._settled else {}).items():
            part = self._book.parts.get(number)
            if part is None:
                continue
            low = min(pos + 1, part.lowest())
            token, published = self._lows.get(number, (part.token, 0))
            if low - (published if token == part.token else 0) > _WORTH_PUBLISHING:
                self._lows[number] = (part.token, low)
                lows.append((number, part.token, low))
        if lows:
            await self._link.call(lambda conn: outbox.raise_low(conn, self._schema, relay=self._relay, lows=lows))
        positions = {part.number: part.pos for part in self._book.parts.values() if part.pos >= 0}
        self._settled = Settled(positions, seen.open)


def _event(row: outbox.Row) -> Event:
    return Event(
        row.id,
        row.part,
        row.topic,
        row.key,
        row.event_id,
        row.payload.encode(),
        row.headers,
        row.created_at,
        row.attempts,
    )
