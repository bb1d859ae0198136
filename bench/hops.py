"""What a start is made of: each step between a commit and a handler by itself, on the same idle system.

    notice    a notification, from its commit's return to a process that listens, in a callback of its loop
    wake      a packet over a socket pair to another process that sleeps, as a parent wakes a worker
    trip      the shortest round trip to the server: `select 1` by asyncpg
    claim     one job of the plain table, as the bare loop claims it
    work      one job of the queue, as a worker claims it

After a pause each, as in `latency`: processors and caches have gone cold, and it is that which the steps cost; the same
steps in a row take a fraction. So what a start takes is how many steps it has, and how much each of them touches.
"""

import asyncio
import json
import random
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg
import psycopg
import uvloop

from bench.pgbench import CLAIM, TABLE
from bench.stats import percentile
from supervisor.db import jobs
from supervisor.db.house import HouseConnection
from supervisor.db.jobs import Lane, Mark

STEPS: Final = ("notice", "wake", "trip", "claim", "work")
_WARM: Final = 10
_SCHEMA: Final = "supervisor"
_CHANNEL: Final = "bench_hops"


def measure(url: str, count: int, pause_ms: tuple[float, float]) -> dict[str, float]:
    """Milliseconds of each step, p50 of *count*; *url*: a migrated database."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(TABLE)
    found = uvloop.run(_all(url, count + _WARM, (pause_ms[0] / 1000, pause_ms[1] / 1000)))
    return {step: percentile(took[_WARM:], 50) for step, took in found.items()}


async def _all(url: str, count: int, pause_s: tuple[float, float]) -> dict[str, list[float]]:
    conn = await asyncpg.connect(url)
    house = await HouseConnection.connect(url, autocommit=True)
    try:
        return {
            "notice": await _notice(url, count, pause_s),
            "wake": await _wake(count, pause_s),
            "trip": await _timed(count, pause_s, (await conn.prepare("select 1")).fetch),
            "claim": await _claim(conn, count, pause_s),
            "work": await _work(house, count, pause_s),
        }
    finally:
        await conn.close()
        await house.close()


async def _timed(
    count: int,
    pause_s: tuple[float, float],
    step: Callable[[], Awaitable[object]],
    before: Callable[[], Awaitable[object]] | None = None,
) -> list[float]:
    took = []
    for _ in range(count):
        if before is not None:
            await before()
        await asyncio.sleep(random.uniform(*pause_s))
        began = time.perf_counter()
        await step()
        took.append((time.perf_counter() - began) * 1000)
    return took


async def _claim(conn: asyncpg.Connection, count: int, pause_s: tuple[float, float]) -> list[float]:
    claim = await conn.prepare(CLAIM.format(batch=50, client="0") + " select id, kind, payload from claimed")
    other = await conn.prepare("insert into plain_job (kind, payload) values ('bench.noop', '{}')")
    return await _timed(count, pause_s, claim.fetch, other.fetch)


async def _work(conn: HouseConnection, count: int, pause_s: tuple[float, float]) -> list[float]:
    session, lanes, marks = secrets.randbits(62) | 1, [Lane("default", 0)], [Mark()]
    await jobs.open_session(conn, _SCHEMA, session=session, parent=1, name="bench", lease_s=86_400.0)

    async def work() -> None:
        answer = await jobs.work(
            conn, _SCHEMA, session=session, keep=1, lanes=lanes, marks=marks, limit=10, lookback_s=0.25
        )
        if len(answer.jobs) != 1:
            raise RuntimeError(f"a claim of one job brought {len(answer.jobs)}")
        marks[0] = answer.marks[0]

    async def add() -> None:
        await conn.execute("select supervisor.enqueue('bench.noop', '{}')")

    took = await _timed(count, pause_s, work, add)
    await conn.execute("delete from supervisor.job")
    await jobs.close_session(conn, _SCHEMA, session=session)
    return took


async def _notice(url: str, count: int, pause_s: tuple[float, float]) -> list[float]:
    heard: list[int] = []
    ear = await asyncpg.connect(url)
    await ear.add_listener(_CHANNEL, lambda *_: heard.append(time.monotonic_ns()))
    child = await asyncio.create_subprocess_exec(
        *_command("notify", url, str(count), *map(str, pause_s)), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await child.communicate()
    sent: list[int] = json.loads(said)
    deadline = time.monotonic() + 10
    while len(heard) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(heard)} of {count} notifications came")
        await asyncio.sleep(0.01)
    await ear.close()
    # A notification may overtake the commit's answer to its sender.
    return [max(0.0, (at - began) / 1e6) for began, at in zip(sent, heard, strict=True)]


async def _wake(count: int, pause_s: tuple[float, float]) -> list[float]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        child = await asyncio.create_subprocess_exec(
            *_command("sleep", str(theirs.fileno()), str(count)),
            stdout=asyncio.subprocess.PIPE, pass_fds=(theirs.fileno(),),
        )  # fmt: skip
        await asyncio.get_running_loop().run_in_executor(None, ours.recv, 1)  # it is there
        sent = []
        for _ in range(count):
            await asyncio.sleep(random.uniform(*pause_s))
            sent.append(time.monotonic_ns())
            ours.send(b".")
        said, _ = await child.communicate()
    heard: list[int] = json.loads(said)
    return [(at - began) / 1e6 for began, at in zip(sent, heard, strict=True)]


def _command(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "bench.hops", *words)


def _notify(url: str, count: int, least_s: float, most_s: float) -> list[int]:
    sent = []
    with psycopg.connect(url, autocommit=True) as conn:
        for _ in range(count):
            time.sleep(random.uniform(least_s, most_s))
            conn.execute("select pg_notify(%s, '')", (_CHANNEL,), prepare=True)
            sent.append(time.monotonic_ns())
    return sent


async def _sleep(descriptor: int, count: int) -> list[int]:
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(False)
    heard: list[int] = []
    done = asyncio.Event()

    def readable() -> None:
        heard.append(time.monotonic_ns())
        sock.recv(1)
        if len(heard) == count:
            done.set()

    asyncio.get_running_loop().add_reader(sock, readable)
    sock.send(b".")
    await done.wait()
    return heard


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["notify", url, count, least, most]:
            print(json.dumps(_notify(url, int(count), float(least), float(most))))
        case ["sleep", descriptor, count]:
            print(json.dumps(uvloop.run(_sleep(int(descriptor), int(count)))))
