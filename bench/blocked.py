"""What a claim costs while 100,000 jobs that may not run stand before those that may.

One claimer, as a worker claims: its plan, acks and the next claim in one round trip, ten jobs each. The jobs it gets
are all alike; what stands before them is nothing, or so many jobs that

    gates        wait for a job of their ordering_key: in the same queue and priority, and older
    paused       are due in a paused queue that is visited first
    max_running  are due in a queue visited first, whose only place is taken
    rate         are due in a queue visited first, whose one start of the hour has been

Each has a database of its own on one server; they are measured claim by claim in turns, in an order that is reversed
each time.
"""

import argparse
import asyncio
import json
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import psycopg

from bench.ground import Conn, Ground, opened, place, row
from bench.report import Chart, Report, Say, Shown, Table
from bench.stats import Summary, percentile
from supervisor.db import jobs
from supervisor.db.house import HouseConnection
from supervisor.db.jobs import ClaimedJob, Lane, Mark
from supervisor.worker.marks import Marks

HELP: Final = "a claim with 100,000 jobs before it that may not run (gates, paused, limited), against one without"
SCHEMA: Final = "supervisor"
BATCH: Final = 10
AT_MOST: Final = 1.5
_AT_ONCE: Final = 1_000
_WARM: Final = 20
# One that is visited first in nearly every claim, and what is to be had behind it.
_HEAD: Final = Lane("head", 0)
_OPEN: Final = Lane("default", 0)
_WEIGHTS: Final = {"head": 1000, "default": 1}


@dataclass(frozen=True, slots=True)
class Round:
    """Milliseconds of a round trip: the middle one, and the one that a hundredth takes longer than."""

    p50: float
    p99: float


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--blocked", type=int, default=100_000, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--claims", type=int, metavar="N", help="per round (default: 500, or 3000 if --full)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of each (default: %(default)s)")
    place(parser)


def run(options: argparse.Namespace, say: Say) -> Report:
    """Block, then measure in turns."""
    claims = options.claims or (3000 if options.full else 500)
    with opened(options, say) as ground, ExitStack() as stack:
        urls = {name: stack.enter_context(ground.database(f"blocked_{name}")) for name in BLOCKS}
        for name, block in BLOCKS.items():
            with psycopg.connect(urls[name], autocommit=True) as conn:
                block(conn, options.blocked)
                conn.execute("vacuum (analyze) supervisor.job")
                found = row(conn, "select count(*) from supervisor.job where lease is null")[0]
                if found != (0 if name == "nothing" else options.blocked):
                    raise RuntimeError(f"{found} jobs are blocked by {name}, not {options.blocked}")
                say(f"{name}: {found:,} jobs stand before the others")

        rounds: dict[str, list[Round]] = {name: [] for name in BLOCKS}
        for number in range(1, options.rounds + 1):
            for name, found in asyncio.run(_measure(urls, claims)).items():
                rounds[name].append(found)
                say(f"round {number}: {name} p50 {found.p50:.3f} ms, p99 {found.p99:.3f} ms")
        return _report(ground, rounds, options.blocked, claims, say)


# ---- what stands before them


def _nothing(conn: Conn, count: int) -> None:
    """The queue is there, and empty."""


def _gates(conn: Conn, count: int) -> None:
    one = {"kind": "bench.noop", "ordering_key": "one"}
    conn.execute("select from supervisor.enqueue('bench.noop', ordering_key => 'one')")
    row(conn, "select looked from supervisor.pass_gates('-infinity', 200)")
    _hold_one(conn, _OPEN)
    for at in range(0, count, _AT_ONCE):
        many = json.dumps([one] * min(_AT_ONCE, count - at))
        conn.execute("select from supervisor.enqueue_many(%s::jsonb)", [many])
    while row(conn, "select looked from supervisor.pass_gates('-infinity', 5000)")[0]:
        pass


def _paused(conn: Conn, count: int) -> None:
    _due(conn, count)
    conn.execute("select supervisor.pause_queue('head')")


def _full(conn: Conn, count: int) -> None:
    _due(conn, 1)
    conn.execute("select supervisor.set_queue('head', max_running => 1)")
    row(conn, "select supervisor.count_queue('head', limited_at, '{}', '{}') from supervisor.queue")
    _hold_one(conn, _HEAD)
    _due(conn, count)


def _rated(conn: Conn, count: int) -> None:
    _due(conn, 1)
    conn.execute("select supervisor.set_queue('head', rate_limit => 1, rate_period => '1 hour')")
    _hold_one(conn, _HEAD)
    _due(conn, count)


BLOCKS: Final[dict[str, Callable[[Conn, int], None]]] = {
    "nothing": _nothing,
    "gates": _gates,
    "paused": _paused,
    "max_running": _full,
    "rate": _rated,
}


def _due(conn: Conn, count: int) -> None:
    conn.execute(
        "insert into supervisor.job (kind, queue) select 'bench.noop', 'head' from generate_series(1, %s)", [count]
    )


def _hold_one(conn: Conn, lane: Lane) -> None:
    """Another worker's job that runs all the time."""
    conn.execute("select supervisor.open_session(1, 1, 'other', 86400)")
    held = row(
        conn,
        "select id from supervisor.work(1, '{}', '{}', '{}', 1, array[%s], array[%s]::smallint[],"
        " array['1970-01-01 00:00:00+00']::timestamptz[], '{0}', 1, '1 s', 1)",
        [lane.queue, lane.priority],
    )
    if held[0] is None:
        raise RuntimeError(f"there was no job to hold in {lane.queue}")


# ---- claiming


async def _measure(urls: dict[str, str], claims: int) -> dict[str, Round]:
    took: dict[str, list[float]] = {name: [] for name in urls}
    async with AsyncExitStack() as stack:
        claimers = {name: await stack.enter_async_context(Claimer(url, claims + _WARM)) for name, url in urls.items()}
        for turn in range(claims + _WARM):
            for name in urls if turn % 2 else reversed(urls):
                took[name].append(await claimers[name].claim())
    return {name: Round(percentile(some[_WARM:], 50), percentile(some[_WARM:], 99)) for name, some in took.items()}


class Claimer:
    """One worker's claims, as many as there are jobs for."""

    def __init__(self, url: str, claims: int) -> None:
        self._url = url
        self._claims = claims
        self._session = random.getrandbits(62) | 1
        self._marks = Marks(_WEIGHTS)
        self._held: list[ClaimedJob] = []

    async def __aenter__(self) -> Self:
        self._conn = conn = await HouseConnection.connect(self._url, autocommit=True)
        await jobs.open_session(conn, SCHEMA, session=self._session, parent=1, name="bench", lease_s=86400.0)
        await conn.execute(
            "insert into supervisor.job (kind, queue) select 'bench.noop', 'default' from generate_series(1, %s)",
            [self._claims * BATCH],
        )
        self._marks.publish([(_HEAD, Mark()), (_OPEN, Mark())])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._send(0)
        await jobs.close_session(self._conn, SCHEMA, session=self._session)
        await self._conn.close()

    async def claim(self) -> float:
        """Acknowledge what is held and claim as much again; the milliseconds that it took."""
        began = time.perf_counter()
        await self._send(BATCH)
        took = (time.perf_counter() - began) * 1000
        if len(self._held) != BATCH:
            raise RuntimeError(f"a claim brought {len(self._held)} jobs of {BATCH}")
        return took

    async def _send(self, limit: int) -> None:
        lanes, marks, lookback_s = self._marks.plan()
        acks = [jobs.Ack(job.id, job.token, 0.0) for job in self._held]
        answer = await jobs.work(
            self._conn, SCHEMA, session=self._session, acks=acks, keep=1, lanes=lanes, marks=marks, limit=limit,
            lookback_s=lookback_s,
        )  # fmt: skip
        self._marks.learn(lanes, answer, lookback_s)
        self._held = answer.jobs


def _report(ground: Ground, rounds: dict[str, list[Round]], blocked: int, claims: int, say: Say) -> Report:
    p50 = {name: Summary.of([one.p50 for one in found]) for name, found in rounds.items()}
    p99 = {name: Summary.of([one.p99 for one in found]) for name, found in rounds.items()}
    # Round by round, since a machine drifts; the middle one of these counts.
    ratios = {
        name: Summary.of([one.p50 / plain.p50 for one, plain in zip(found, rounds["nothing"], strict=True)])
        for name, found in rounds.items()
    }
    table = Table(
        "blocked",
        ("before them", "p50 ms", "spread", "p99 ms", "times the cost without"),
        [
            (
                name if name == "nothing" else f"{blocked:,} by {name}",
                f"{p50[name].median:.3f}", f"{p50[name].low:.3f}-{p50[name].high:.3f}",
                f"{p99[name].median:.3f}", f"{ratios[name].median:.2f}",
            )
            for name in rounds
        ],
    )  # fmt: skip
    say(f"\n{table.markdown()}")
    worst = max(ratios, key=lambda name: ratios[name].median)
    measured = ", ".join(f"{name} {ratios[name].median:.2f}" for name in rounds if name != "nothing")
    figures: dict[str, Any] = {
        **ground.facts(),
        "blocked": blocked,
        "claims": claims,
        "batch": BATCH,
        "p50_ms": {name: one.as_dict() for name, one in p50.items()},
        "p99_ms": {name: one.as_dict() for name, one in p99.items()},
        "times": {name: one.as_dict() for name, one in ratios.items()},
    }
    return Report(
        f"blocked: a claim with {blocked:,} jobs before it that may not run, against {p50['nothing'].median:.2f} ms "
        f"without them, takes {measured} times as long ({ground.where()})",
        figures,
        [table],
        Chart(
            f"Round trip of a claim, {blocked:,} blocked jobs before it",
            "ms",
            "bars",
            {name: [one.median] for name, one in p50.items()},
            spread={name: (one.low, one.high) for name, one in p50.items()},
        ),
        [
            Shown(
                "blocked",
                f"claims with {blocked:,} blocked jobs before them",
                f"at most {AT_MOST:g} times the cost without",
                f"{ratios[worst].median:.2f} times ({worst})",
                ratios[worst].median <= AT_MOST,
            )
        ],
    )
