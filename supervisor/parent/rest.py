"""When there is nothing to do, it is looked for less often.

    awake --nothing for AWAKE_S, notifications are heard--> at rest --any sign of work--> awake

At rest the parts of a supervisor that look again and again wait longer. What they look for is told of by
notifications, by the workers, or falls due at a time that is known; a look besides is for what was lost.

Always true: a sign of work ends every long wait at once.

Elsewhere: who waits (tender by service.py, gates.py, cron.py); the poll for jobs, whose interval is a setting, does
not (looker.py).
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from supervisor.parent.guard import wait_at_most

AWAKE_S: Final = 10.0


class Rest:
    """Whether there is work.

    Args:
        listening: whether notifications are heard.
    """

    def __init__(self, *, listening: Callable[[], bool], now: Callable[[], float] = time.monotonic) -> None:
        self._listening = listening
        self._now = now
        self._worked_at = now()
        self._waiting: set[asyncio.Event] = set()

    @property
    def resting(self) -> bool:
        """Whether there has been no work for a while."""
        return self._listening() and self._now() - self._worked_at >= AWAKE_S

    def work(self) -> None:
        """There is some, or there may be."""
        self._worked_at = self._now()
        for event in self._waiting:
            event.set()
        self._waiting.clear()

    async def wait(self, event: asyncio.Event, seconds: float, at_rest_s: float) -> None:
        """Return when *event* is set or *seconds* have passed; at rest when it is set or *at_rest_s* have. A sign of
        work sets *event* where it ends the longer wait."""
        await wait_at_most(event, seconds)
        if event.is_set() or at_rest_s <= seconds or not self.resting:
            return
        self._waiting.add(event)
        try:
            await wait_at_most(event, at_rest_s - seconds)
        finally:
            self._waiting.discard(event)
