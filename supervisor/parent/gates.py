"""Lets in jobs that waited at a gate: for their parents, their turn, room, their time.

    notification: there are notes --.
    the next note falls due         +--> look: pass_gates() takes the notes that are due and lets in whoever may go
    each second, at rest 30 s       |
    50 ms after a look that found --'    at once, while there are more than one look takes

Every supervisor does this; one at a time works, the others come back later. What ends a run lets the next in by
itself where it can, so most jobs with keys do not wait for this.

Always true: a look that fails or is lost loses nothing, since it is one statement and notes go with what they were
for. Notes are read from the beginning as long as that is cheap. Where an old snapshot keeps those of before, they
are read from where the last look has ended, less a while, and from the beginning at a bounded share of the time: so
long may a note of a transaction that was open for seconds stay unread that nobody was told of.

Elsewhere: who may go (db/functions/046_gate.sql).
"""

import asyncio
import random
import time
from typing import Final

from supervisor.clock import DbClock
from supervisor.db import tend
from supervisor.db.links import Caller
from supervisor.parent.guard import Guard
from supervisor.parent.rest import Rest
from supervisor.settings import Settings

_MOST: Final = 200
_EACH_S: Final = 1.0
_EACH_AT_REST_S: Final = 30.0
_FOUND_S: Final = 0.05
_LEAST_S: Final = 0.002
_REST: Final = 4
_LOOKBACK_S: Final = 2.0
_CHEAP_MS: Final = 5.0
_DUTY: Final = 50
_LONGEST_GAP_S: Final = 60.0


class Gatekeeper:
    """The looks of one supervisor."""

    def __init__(self, link: Caller, settings: Settings, *, guard: Guard, clock: DbClock, rest: Rest) -> None:
        self._link = link
        self._schema = settings.schema_
        self._guard = guard
        self._clock = clock
        self._rest = rest
        self._now = asyncio.Event()
        self._since = 0.0
        self._next_full = 0.0
        self._wait_s = _EACH_S
        self._took_s = 0.0
        self._at_rest_s = 0.0

    def heard(self, at: float) -> None:
        """There is a note of the time *at* (the database's clock), maybe of a transaction that was open for long."""
        self._since = min(self._since, at)
        self._now.set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self._wait_s, self._took_s = _EACH_S * random.uniform(0.9, 1.1), 0.0
            self._at_rest_s = 0.0
            self._now.clear()
            await self._guard.run(self._look, "gates")
            # Never more than most of the time, whatever asks for it.
            rest = max(_LEAST_S, self._took_s / _REST)
            await asyncio.sleep(rest)
            await self._rest.wait(self._now, max(0.0, self._wait_s - rest), self._at_rest_s)

    async def _look(self) -> None:
        began, clock = time.monotonic(), self._clock.now()
        full = began >= self._next_full
        since, self._since = self._since, max(self._since, clock - _LOOKBACK_S)
        try:
            passed = await self._link.call(
                lambda conn: tend.pass_gates(conn, self._schema, since=0.0 if full else since, most=_MOST)
            )
        except BaseException:
            self._since = min(self._since, since)
            raise
        self._took_s = time.monotonic() - began
        if passed.looked < 0 or passed.read_ms is None:
            self._since = min(self._since, since)
            self._wait_s = _FOUND_S
            return
        if passed.looked >= _MOST:
            self._since = min(self._since, since)
            self._wait_s = 0.0
            return
        if full:
            costly = passed.read_ms > _CHEAP_MS
            self._next_full = began + (min(_LONGEST_GAP_S, _DUTY * passed.read_ms / 1000) if costly else 0.0)
        if passed.looked:
            self._rest.work()
            self._wait_s = _FOUND_S
        else:
            self._at_rest_s = _EACH_AT_REST_S
        if passed.next_s is not None:
            self._wait_s = min(self._wait_s, max(_LEAST_S, passed.next_s))
            self._at_rest_s = min(self._at_rest_s, max(_LEAST_S, passed.next_s))
