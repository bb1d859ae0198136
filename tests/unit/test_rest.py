"""At rest the long waits; a sign of work ends them."""

import asyncio
from collections.abc import Callable

from supervisor.parent.rest import AWAKE_S, Rest

FAR_S = 600.0


class Clock:
    at = 1000.0

    def __call__(self) -> float:
        return self.at


def made(listening: Callable[[], bool] = lambda: True) -> tuple[Rest, Clock]:
    clock = Clock()
    return Rest(listening=listening, now=clock), clock


async def test_it_rests_after_a_while_without_work_and_only_while_it_hears() -> None:
    hears = {"now": True}
    rest, clock = made(lambda: hears["now"])
    seen = [rest.resting]
    clock.at += AWAKE_S
    seen.append(rest.resting)
    hears["now"] = False
    seen.append(rest.resting)
    hears["now"] = True
    rest.work()
    seen.append(rest.resting)
    assert seen == [False, True, False, False]


async def test_awake_the_short_wait_is_all() -> None:
    rest, _ = made()
    async with asyncio.timeout(10):
        await rest.wait(asyncio.Event(), 0.01, FAR_S)


async def test_at_rest_work_ends_the_long_wait_and_so_does_its_own_event() -> None:
    rest, clock = made()
    clock.at += AWAKE_S
    for ends in ("work", "event"):
        event = asyncio.Event()
        waiting = asyncio.get_running_loop().create_task(rest.wait(event, 0.0, FAR_S))
        done, _ = await asyncio.wait({waiting}, timeout=0.05)
        assert not done
        if ends == "work":
            rest.work()
            clock.at += AWAKE_S
        else:
            event.set()
        async with asyncio.timeout(10):
            await waiting
        assert event.is_set()


async def test_a_wait_that_is_not_longer_at_rest_ends_in_time() -> None:
    rest, clock = made()
    clock.at += AWAKE_S
    async with asyncio.timeout(10):
        await rest.wait(asyncio.Event(), 0.01, 0.0)
