"""Looks for due jobs now and then, whatever notifications say.

    every poll interval, jittered (shorter without LISTEN)   -+
    LISTEN is active (again), the wish for wake-ups is seen  -+--> look --> wake one worker, next due times
    a queue that no notification named                       -+

Always true: a look that meets only busy workers is remembered for the next one that says it is hungry: its
claim under way may be older than what the look is for.

Elsewhere: whom to wake (waker.py); the statement (functions/070_sweep.sql, low_water).
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final

from supervisor.db import tend
from supervisor.db.links import Caller
from supervisor.metrics import metrics
from supervisor.parent.fleet import Fleet
from supervisor.parent.guard import Guard, wait_at_most
from supervisor.parent.isolation import Isolation
from supervisor.parent.lanes import LaneBook
from supervisor.parent.waker import Waker
from supervisor.settings import Settings
from supervisor.wire.messages import Wake

_LOOKBACK_S: Final = 1.0


class Looker:
    """The poll. *listening*: whether LISTEN works now."""

    def __init__(
        self,
        link: Caller,
        settings: Settings,
        *,
        guard: Guard,
        fleet: Fleet,
        waker: Waker,
        isolation: Isolation,
        lanes: LaneBook,
        listening: Callable[[], bool],
    ) -> None:
        self._link = link
        self._settings = settings
        self._guard = guard
        self._fleet = fleet
        self._waker = waker
        self._isolation = isolation
        self._lanes = lanes
        self._listening = listening
        self._now = asyncio.Event()

    def look_now(self) -> None:
        """Look at once, or once more if a look is under way."""
        self._now.set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            settings = self._settings
            every = settings.poll_every_s if self._listening() else settings.poll_without_listen_s
            metrics().poll_interval_seconds.set(every)
            await wait_at_most(self._now, every * random.uniform(0.8, 1.2))
            self._now.clear()
            metrics().polls.inc()
            await self._guard.run(self._look, "poll")

    async def _look(self) -> None:
        if not any(child.hungry for child in self._fleet.ready()):
            self._waker.wake(Wake(), "poll")
            return
        # A queue that was named a moment ago is in the table only from the next tick on.
        named = sorted(self._lanes.announced)
        waters = await self._link.call(
            lambda conn: tend.low_water_of_all(conn, self._settings.schema_, named, lookback_s=_LOOKBACK_S)
        )
        for water in waters:
            if water.next_s is not None:
                self._waker.due_in(water.next_s)
        if any(water.due for water in waters if not water.lane.suspects):
            self._waker.wake(Wake(), "poll")
        if any(water.due for water in waters if water.lane.suspects):
            self._isolation.due()
