"""What the Python programs of peers share: their commands, the clock, what they print.

It runs in the peers' own environments, so it imports nothing but the standard library.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

NOTE = "x" * 100
_TELL_EVERY_S = 0.05


class Producer(Protocol):
    """An open connection that adds jobs."""

    async def one(self, n: int) -> None:
        """Add job *n* and commit."""

    async def many(self, count: int) -> None:
        """Add so many by one bulk call, the fastest there is, and commit."""


class Clock:
    """What a worker tells of its runs."""

    def __init__(self, mode: str) -> None:
        self.latency = mode == "latency"
        self._done = self._first = self._last = 0

    async def go(self) -> None:
        """Say that everything is ready, and wait for the word to begin."""
        tell({"ready": True})
        await asyncio.to_thread(sys.stdin.readline)
        if not self.latency:
            self._telling = asyncio.get_running_loop().create_task(self._tell())

    def seen(self, n: int) -> None:
        """A handler of job *n* has started."""
        now = time.monotonic_ns()
        if self.latency:
            tell({"n": n, "at": now})
            return
        self._done += 1
        self._first = self._first or now
        self._last = now

    def begin(self) -> None:
        """The first job is about to be claimed; for loops without handlers."""
        self._first = time.monotonic_ns()

    def seen_all(self, count: int) -> None:
        """So many jobs are done; for loops without handlers."""
        self._last = time.monotonic_ns()
        self._done += count

    async def _tell(self) -> None:
        told = 0
        while True:
            await asyncio.sleep(_TELL_EVERY_S)
            if self._done != told:
                told = self._done
                tell({"done": told, "first": self._first, "last": self._last})


class Program(Protocol):
    """A peer."""

    async def setup(self, url: str) -> None:
        """Make its tables."""

    def producer(self, url: str) -> AbstractAsyncContextManager[Producer]:
        """A producer on a connection of its own."""

    async def work(self, url: str, concurrency: int, clock: Clock) -> None:
        """Run jobs until killed: `clock.go()` once everything is ready, `clock.seen(n)` in each handler."""


def tell(found: dict[str, Any]) -> None:
    """One line of JSON for the bench."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def main(program: Program) -> None:
    """Do what the command line says."""
    command, url, *words = sys.argv[1:]
    run: Callable[[Coroutine[Any, Any, None]], None]
    try:
        import uvloop
    except ImportError:
        run = asyncio.run
    else:
        run = uvloop.run
    if command == "setup":
        run(program.setup(url))
    elif command == "fill":
        count, calls = int(words[0]), int(words[1]) if len(words) > 1 else 1
        run(_fill(program, url, count, calls))
    elif command == "single":
        run(_single(program, url, int(words[0])))
    elif command == "produce":
        run(_produce(program, url, int(words[0]), float(words[1]), float(words[2])))
    elif command == "work":
        run(program.work(url, int(words[0]), Clock(words[1])))
    else:
        raise SystemExit(f"no such command: {command}")


async def _fill(program: Program, url: str, count: int, calls: int) -> None:
    async with program.producer(url) as producer:
        began = time.monotonic()
        for _ in range(calls):
            await producer.many(count)
        tell({"seconds": time.monotonic() - began})


async def _single(program: Program, url: str, count: int) -> None:
    async with program.producer(url) as producer:
        await producer.one(0)
        began = time.monotonic()
        for n in range(count):
            await producer.one(n)
        tell({"seconds": time.monotonic() - began})


async def _produce(program: Program, url: str, count: int, least_ms: float, most_ms: float) -> None:
    sent = []
    async with program.producer(url) as producer:
        for n in range(count):
            await asyncio.sleep(random.uniform(least_ms, most_ms) / 1000)
            await producer.one(n)
            sent.append(time.monotonic_ns())
    tell({"sent": sent})
