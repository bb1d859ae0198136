"""Notifications that are too many: then looking often is cheaper, for who is told and for whoever writes.

    told of jobs or events --more than MOST_PER_S in a second--> paused: look again and again --a while--> told

A transaction that notifies takes a lock of the whole server until its commit is on disk, so those that all notify
commit one after the other. A supervisor, or a relay, that hears many therefore no longer wants any, and with nobody
who wants them none are sent. Now and then it asks again, and soon knows whether there are still as many.

Always true: while paused, a look is at most LOOK_EVERY_S away as long as looks find some; each that finds none
doubles it, up to SLOWEST_LOOK_S, so that what is left of a pause when the flood is over costs next to nothing. Each
further pause of one flood is longer, up to MOST_PAUSE_S, so that a flood that goes on costs writers a few
notifications a second on average.

Elsewhere: what makes enqueueing silent (parent/presence.py, functions/020_wake.sql), and publishing (outbox/relay.py,
functions/100_publish.sql); whom a look wakes (parent/waker.py).
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from supervisor.log import Repeats, get_logger

MOST_PER_S: Final = 100
LOOK_EVERY_S: Final = 0.01
SLOWEST_LOOK_S: Final = 0.1
LEAST_PAUSE_S: Final = 2.0
MOST_PAUSE_S: Final = 16.0
_SAY_EVERY_S: Final = 60.0


class Floods:
    """Whether notifications are wanted, by how many there are.

    Args:
        look: called again and again while they are not: look for jobs, or events.
        on_change: called when they are no longer, or again, wanted.
        what: what is looked for, in the log of *who*.
    """

    def __init__(
        self,
        *,
        look: Callable[[], None],
        on_change: Callable[[], None],
        what: str = "jobs",
        who: str = "parent",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._on_change = on_change
        self._what = what
        self._log = get_logger(who)
        self._now = now
        self._repeats = Repeats(_SAY_EVERY_S)
        self._begun = asyncio.Event()
        self._since = 0.0
        self._heard = 0
        self._pause_s = 0.0
        self._look_in_s = LOOK_EVERY_S
        self._resumed_at = float("-inf")

    @property
    def paused(self) -> bool:
        """Whether notifications are not wanted now."""
        return self._begun.is_set()

    def heard(self) -> None:
        """One more notification."""
        now = self._now()
        if now - self._since >= 1.0:
            self._since, self._heard = now, 0
        self._heard += 1
        if self._heard > MOST_PER_S and not self.paused:
            self._pause(now)

    def looked(self, found: bool) -> None:
        """Somebody has looked, and found some or none."""
        self._look_in_s = LOOK_EVERY_S if found else min(SLOWEST_LOOK_S, 2 * self._look_in_s)

    def _pause(self, now: float) -> None:
        same_flood = now - self._resumed_at < self._pause_s
        self._pause_s = min(MOST_PAUSE_S, 2 * self._pause_s) if same_flood else LEAST_PAUSE_S
        self._look_in_s = LOOK_EVERY_S
        self._begun.set()
        self._on_change()
        self._repeats.tell(
            self._log.info,
            "notifications.paused",
            reason=f"more than {MOST_PER_S} in a second: they hold up those who commit",
            did=f"looking for {self._what} every {LOOK_EVERY_S * 1000:g} ms instead, less often while there are none",
            for_s=self._pause_s,
        )

    async def run(self) -> None:
        """Look while paused, until cancelled."""
        while True:
            await self._begun.wait()
            until = self._now() + self._pause_s
            while self._now() < until:
                self._look()
                await asyncio.sleep(self._look_in_s)
            self._resumed_at, self._heard = self._now(), 0
            self._begun.clear()
            self._on_change()
