"""This supervisor's own row: that it lives, what it does, and whether it wants wake-ups.

It wants them while some worker was idle within the last half minute or so and they are not too many
(supervisor/floods.py). With none wanted by anyone, enqueueing sends no notification at all. A job committed just before
the wish became visible sent none either, so the queue is looked at once after it.

Always true: recovery never reads this row; people and enqueueing do.

Elsewhere: the row (sql/parent_beat.sql); what it is good for (functions/020_wake.sql).
"""

import asyncio
import json
import os
import socket
import time
from collections.abc import Callable
from typing import Final

from supervisor import __version__
from supervisor.clock import DbClock
from supervisor.db import tend
from supervisor.db.links import Caller
from supervisor.parent.fleet import Fleet
from supervisor.parent.guard import Guard, wait_at_most
from supervisor.parent.health import HealthState
from supervisor.settings import Settings

_SLACK_S: Final = 10.0
_AGAIN_S: Final = 0.05


class Presence:
    """The row and the rhythm it is renewed in.

    Args:
        listening: whether LISTEN works now.
        flooded: whether there are too many notifications to want any.
        on_wanted: called when wake-ups were switched on and may have been missed until now.
    """

    def __init__(
        self,
        link: Caller,
        settings: Settings,
        parent: int,
        *,
        guard: Guard,
        fleet: Fleet,
        health: HealthState,
        clock: DbClock,
        listening: Callable[[], bool],
        flooded: Callable[[], bool],
        on_wanted: Callable[[], None],
    ) -> None:
        self._link = link
        self._settings = settings
        self._parent = parent
        self._guard = guard
        self._fleet = fleet
        self._health = health
        self._clock = clock
        self._listening = listening
        self._flooded = flooded
        self._on_wanted = on_wanted
        self._now = asyncio.Event()
        self._idle_at = 0.0
        self._wanted = False
        self.written = False
        """Whether the row was ever written."""

    def beat_now(self) -> None:
        """Something changed that people or producers are to see."""
        self._now.set()

    def idle(self) -> None:
        """Some worker has nothing to do."""
        self._idle_at = time.monotonic()
        if self._settings.wake and not self._wanted and not self._flooded():
            self._now.set()

    async def run(self) -> None:
        """Renew the row until cancelled; soon again where that failed: until it is there, nobody sends wake-ups."""
        pause = _AGAIN_S
        while True:
            done = await self._guard.run(self._beat, "beat")
            pause = _AGAIN_S if done else min(2 * pause, self._settings.renew_every_s)
            await wait_at_most(self._now, self._settings.renew_every_s if done else pause)
            self._now.clear()

    async def _beat(self) -> None:
        settings = self._settings
        patience = _SLACK_S + 2 * settings.renew_every_s
        wants = settings.wake and not self._flooded() and time.monotonic() - self._idle_at < patience
        turned_on = wants and not self._wanted
        workers = [
            {"slot": child.slot, "pid": child.pid, "state": child.state, "running": child.load}
            for child in self._fleet.living()
        ]
        await self._link.call(
            lambda conn: tend.beat(
                conn,
                settings.schema_,
                parent=self._parent,
                name=settings.name,
                host=socket.gethostname(),
                pid=os.getpid(),
                version=__version__,
                state=self._health.facts.state,
                detail=json.dumps({"workers": workers, "listening": self._listening()}),
                ttl_s=max(settings.lease_s, 3 * settings.renew_every_s),
                waiting=wants,
            )
        )
        self.written = True
        self._wanted = wants
        sent = time.monotonic()
        now = await self._link.call(lambda conn: tend.now(conn, settings.schema_))
        self._clock.observe(now, sent, time.monotonic())
        if turned_on:
            self._on_wanted()

    async def gone(self) -> None:
        """Take the row away."""
        await self._link.call(lambda conn: tend.gone(conn, self._settings.schema_, parent=self._parent))
