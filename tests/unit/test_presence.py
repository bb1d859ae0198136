"""A beat that failed is soon made again: until the row is there, producers send no wake-ups."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

from supervisor.clock import DbClock
from supervisor.errors import DatabaseUnavailable
from supervisor.parent.fleet import Fleet
from supervisor.parent.guard import Guard
from supervisor.parent.health import HealthState
from supervisor.parent.presence import Presence
from supervisor.settings import Settings
from tests.support.waiting import wait_until_async


class Cut:
    """Connections that have died unnoticed: so many calls fail before one passes."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls: list[float] = []

    async def call(self, work: Any) -> Any:
        self.calls.append(time.monotonic())
        if len(self.calls) <= self.failures:
            raise DatabaseUnavailable("terminating connection due to administrator command", unsure=True)
        return time.time()


async def test_a_beat_that_failed_is_soon_made_again() -> None:
    """A service that was restarted with its database once stayed without wake-ups for a whole period."""
    link, health = Cut(3), HealthState()
    presence = Presence(
        link, Settings(lease_s=3600, renew_every_s=1000), 7,
        guard=Guard(health), fleet=cast("Fleet", SimpleNamespace(living=list)), health=health, clock=DbClock(),
        listening=lambda: True, flooded=lambda: False, on_wanted=lambda: None,
    )  # fmt: skip
    running = asyncio.create_task(presence.run())
    await wait_until_async(lambda: presence.written, 10, "the row is written")
    await wait_until_async(lambda: len(link.calls) == 5, 10, "and the clock was asked for")
    running.cancel()
