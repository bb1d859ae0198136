"""Too many notifications: looked instead, for a while, and longer each time."""

import asyncio

import pytest

from supervisor.floods import LEAST_PAUSE_S, LOOK_EVERY_S, MOST_PAUSE_S, MOST_PER_S, SLOWEST_LOOK_S, Floods
from tests.support.waiting import wait_until_async

LOOK_S = 0.25  # what passes from look to look, as far as this clock says


class Clock:
    at = 1000.0

    def __call__(self) -> float:
        return self.at


class Flooded:
    def __init__(self) -> None:
        self.clock = Clock()
        self.looks = 0
        self.changes: list[bool] = []
        self.floods = Floods(look=self._look, on_change=self._changed, now=self.clock)

    def _look(self) -> None:
        self.looks += 1
        self.clock.at += LOOK_S

    def _changed(self) -> None:
        self.changes.append(self.floods.paused)

    def hear(self, count: int, seconds: float) -> None:
        for _ in range(count):
            self.floods.heard()
            self.clock.at += seconds / count

    async def pass_by(self) -> float:
        """Wait until the pause is over; how long it was."""
        began = self.clock.at
        await wait_until_async(lambda: not self.floods.paused, 60, "the pause is over")
        return self.clock.at - began


async def test_a_few_notifications_are_always_wanted() -> None:
    flooded = Flooded()
    for _ in range(60):
        flooded.hear(MOST_PER_S - 1, 1.0)
    assert flooded.changes == []


async def test_a_flood_is_looked_through_and_each_pause_of_it_is_longer() -> None:
    flooded = Flooded()
    running = asyncio.get_running_loop().create_task(flooded.floods.run())
    lengths = []
    for _ in range(5):
        flooded.hear(MOST_PER_S + 1, 0.1)
        assert flooded.floods.paused
        lengths.append(round(await flooded.pass_by(), 1))
    assert lengths == [2.0, 4.0, 8.0, 16.0, MOST_PAUSE_S]
    assert flooded.changes == [True, False] * 5
    assert flooded.looks == sum(lengths) / LOOK_S
    # Another flood, later, begins anew.
    flooded.clock.at += 100
    flooded.hear(MOST_PER_S + 1, 0.1)
    assert round(await flooded.pass_by(), 1) == LEAST_PAUSE_S
    running.cancel()


async def test_looks_that_find_nothing_become_rare_and_one_that_finds_a_job_makes_them_frequent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flooded, found, slept = Flooded(), [False] * 6 + [True] + [False] * 2, list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if found:
            flooded.floods.looked(found.pop(0))
        await yielded(0)

    yielded = asyncio.sleep
    running = asyncio.get_running_loop().create_task(flooded.floods.run())
    flooded.hear(MOST_PER_S + 1, 0.1)
    with monkeypatch.context() as patched:
        patched.setattr("supervisor.floods.asyncio.sleep", sleep)
        while flooded.floods.paused:
            await yielded(0)
    slowest = SLOWEST_LOOK_S
    assert slept == [LOOK_EVERY_S, 0.02, 0.04, 0.08, slowest, slowest, slowest, LOOK_EVERY_S]
    running.cancel()
