"""Wait for a fact, with a deadline, and say what was last seen when it does not come.

No test sleeps to let something happen: it waits until it has happened.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import pytest

T = TypeVar("T")

_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.1


def wait_until(fact: Callable[[], T], deadline_s: float = 10.0, what: str = "") -> T:
    """Call *fact* until it is truthy and return its value; fail the test after *deadline_s*."""
    began = time.monotonic()
    pause = _FIRST_PAUSE_S
    while not (seen := fact()):
        if time.monotonic() - began > deadline_s:
            _fail(what or repr(fact), deadline_s, seen)
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)
    return seen


async def wait_until_async(fact: Callable[[], T | Awaitable[T]], deadline_s: float = 10.0, what: str = "") -> T:
    """Do as `wait_until` without holding up the loop; *fact* may be a coroutine function."""
    began = time.monotonic()
    pause = _FIRST_PAUSE_S
    while True:
        answer = fact()
        seen = cast("T", await answer if inspect.isawaitable(answer) else answer)
        if seen:
            return seen
        if time.monotonic() - began > deadline_s:
            _fail(what or repr(fact), deadline_s, seen)
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)


def _fail(what: str, deadline_s: float, seen: object) -> None:
    pytest.fail(f"not within {deadline_s:g} s: {what}; last seen: {seen!r}")
