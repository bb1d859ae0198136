"""Recurring work of the parent."""

import asyncio
import time
from typing import cast

from supervisor.parent.guard import Guard
from supervisor.parent.health import HealthState
from tests.support.waiting import wait_until_async


class _Health:
    def set_degraded(self, what: object, now: bool) -> None:
        pass


async def test_work_that_is_wanted_soon_does_not_wait_for_its_turn() -> None:
    """Jobs of a claim that was under way when its worker died once waited for the next sweep, a second away."""
    done: list[float] = []

    async def work() -> None:
        done.append(time.monotonic())

    soon = asyncio.Event()
    every = asyncio.ensure_future(Guard(cast("HealthState", _Health())).every(60.0, work, "tend", soon))
    await wait_until_async(lambda: len(done) == 1)
    await asyncio.sleep(0)
    soon.set()
    await wait_until_async(lambda: len(done) == 2, 2)
    for _ in range(100):
        soon.set()
        await asyncio.sleep(0)
    assert len(done) <= 3, "however often it is wanted, it leaves a pause"
    every.cancel()
