"""Jobs a second and the time of a claim while an old snapshot elsewhere keeps every dead row.

A transaction reads the queue and stays open. Then the service runs jobs in steps; during each its rate is taken (the
middle of it, by the history), and after each some claims are timed: batches of ten by a session of the bench's own that
keeps its marks as a worker does, each acknowledged. The baseline is the first step, before anything is dead; it is
taken in databases of its own besides, since there is but one start in each.
"""

import argparse
import json
import secrets
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import psycopg

from bench.drain import at_once
from bench.emptying import SETTINGS, Case, add, emptied
from bench.ground import Ground, opened, place, row, until
from bench.report import Chart, Report, Say, Shown, Table
from bench.service import BenchService
from bench.stats import percentile, readable
from supervisor.db.jobs import EPOCH, numbers, quoted, row_places
from supervisor.db.statements import statement

HELP: Final = "jobs a second and claim time under a pinned snapshot, over the jobs processed"
_STEP: Final = 50_000
_STAGES: Final = (0, 50_000, 200_000, 1_000_000)
_BATCH: Final = 10
_TIMES: Final = 3  # the first figure and the last are medians of so many
_BEYOND: Final = 2_000  # what a service holds when it stops is not counted


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--jobs", type=int, metavar="N", help="processed (default: 200000, or 1000000 if --full)")
    parser.add_argument("--probes", type=int, default=1_000, metavar="N", help="claims timed (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=4, metavar="N", help="workers (default: %(default)s)")
    place(parser)


def run(options: argparse.Namespace, say: Say) -> Report:
    """Pin, and look at each stage."""
    jobs = options.jobs or (1_000_000 if options.full else 200_000)
    stages = [stage for stage in _STAGES if stage < jobs] + [jobs]
    settings = {"processes": options.processes}
    window = min(_STEP, max(1_000, jobs // 3))
    looks: list[dict[str, float]] = []
    with opened(options, say) as ground, ExitStack() as stack:
        # The start can be had but once in a database, and one measurement is none.
        starts = [_start(ground, window, settings) for _ in range(_TIMES - 1)]
        url = stack.enter_context(ground.database("pinned"))
        stack.enter_context(pinned(url))
        watch = stack.enter_context(psycopg.connect(url, autocommit=True))
        done = 0
        for stage in stages:
            if stage > done:
                _run_through(url, watch, stage - done, settings)
                done = stage
            rates = [] if stage else list(starts)
            for _ in range(_TIMES if stage == stages[-1] else 1):
                rates.append(_window(url, window, settings))
                _run_through(url, watch, 0, settings)
                done += window + _BEYOND
            groups = [_claims(url, watch, max(20, options.probes // _TIMES)) for _ in range(_TIMES)]
            p50, p99 = (statistics.median(some) for some in zip(*groups, strict=True))
            rate = statistics.median(rates)
            looks.append({"processed": stage, "rate": rate, "p50_ms": p50, "p99_ms": p99})
            say(f"{stage:,} jobs processed: {readable(rate)} jobs/s, claim p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    first, last = looks[0], looks[-1]
    ratio = last["rate"] / first["rate"]
    slower = last["p99_ms"] / first["p99_ms"]
    line = (
        f"pinned: after {jobs:,} jobs under an old snapshot {readable(last['rate'])} jobs/s, {ratio:.2f} x the start, "
        f"claim p99 {last['p99_ms']:.2f} ms, {slower:.2f} x the start ({options.processes} workers, up to "
        f"{at_once(SETTINGS)} jobs a claim; {ground.where()})"
    )
    rows = [
        (f"{one['processed']:,}", readable(one["rate"]), f"{one['rate'] / first['rate']:.2f} x",
         f"{one['p50_ms']:.2f}", f"{one['p99_ms']:.2f}")
        for one in looks
    ]  # fmt: skip
    after = f"pinned horizon, after {jobs:,} jobs"
    return Report(
        line,
        {**ground.facts(), "looks": looks},
        [Table("pinned", ("jobs processed", "jobs/s", "/ start", "claim p50 ms", "claim p99 ms"), rows)],
        Chart("pinned: jobs/s by jobs processed under an old snapshot", "jobs/s", "lines",
              {"service": [one["rate"] for one in looks]}, x=[f"{one['processed']:,.0f}" for one in looks],
              x_title="jobs processed"),
        [
            Shown("pinned-ratio", f"{after}: jobs/s", ">= 0.9 x the start", f"{ratio:.2f} x", ratio >= 0.9),
            Shown("pinned-rate", f"{after}: jobs/s", ">= 25,000", readable(last["rate"]), last["rate"] >= 25_000),
            Shown("pinned-p99", f"{after}: claim p99", "<= 2 x the start", f"{slower:.2f} x", slower <= 2),
        ],
    )  # fmt: skip


@contextmanager
def pinned(url: str) -> Iterator[None]:
    """Inside the block a transaction holds a snapshot that has read the queue."""
    with psycopg.connect(url) as pin:
        pin.execute("set transaction isolation level repeatable read")
        pin.execute("select count(*) from supervisor.job")
        yield


def _start(ground: Ground, window: int, settings: dict[str, int]) -> float:
    with ground.database("start") as url, pinned(url):
        return _window(url, window, settings)


def _window(url: str, window: int, settings: dict[str, int]) -> float:
    add(url, window + _BEYOND)
    return emptied(Case("pinned", url, settings), window)


def _run_through(url: str, watch: psycopg.Connection[Any], jobs: int, settings: dict[str, int]) -> None:
    """Add so many jobs, and run all that are queued."""
    with BenchService(url, **SETTINGS, **settings) as service:
        while True:
            if jobs > 0:
                add(url, min(jobs, 4 * _STEP))
                jobs -= 4 * _STEP
            # By its last id: looking through all that is dead, again and again, takes what the jobs need.
            last = row(watch, "select last_value from supervisor.job_id_seq")[0]
            until(watch, service, f"select not exists (select from supervisor.job where id = {last})", 300, 0.1)
            if jobs <= 0:
                until(watch, service, "select not exists (select from supervisor.job)", 300, 0.5)
                return


def _claims(url: str, watch: psycopg.Connection[Any], probes: int) -> tuple[float, float]:
    """Time claims of ten; p50 and p99 in milliseconds. What is queued is claimed and acknowledged."""
    add(url, (probes + 5) * _BATCH)
    session = secrets.randbits(62) + 1
    watch.execute(
        "insert into supervisor.session (id, name, expires_at)"
        " values (%s, 'bench', clock_timestamp() + interval '1 h')",
        [session],
    )
    text, took = statement("work", "supervisor"), []
    mark, acks = (EPOCH, 0), list[tuple[int, int, str]]()
    for number in range(probes + 5):
        began = time.perf_counter()
        rows = watch.execute(
            text,
            {"session": session, "ids": numbers(ack[0] for ack in acks), "claims": numbers(ack[1] for ack in acks),
             "took": numbers(0.001 for _ in acks), "keep": 1, "queues": quoted(["default"]),
             "priorities": numbers([0]), "mark_at": quoted([mark[0]]), "mark_id": numbers([mark[1]]),
             "limit": _BATCH, "lookback_s": 0.0, "hands": _BATCH, "tids": row_places([ack[2] for ack in acks])},
        ).fetchall()  # fmt: skip
        if number >= 5:  # the first ones plan, and find their mark
            took.append((time.perf_counter() - began) * 1000)
        control = json.loads(rows.pop()[4])
        if len(rows) != _BATCH or control["lost"]:
            raise RuntimeError(f"a claim of {_BATCH} brought {len(rows)}: {control}")
        acks = sorted((row[1], row[2], row[13]) for row in rows)
        [at], [last] = control["marks"]["at"], control["marks"]["ids"]
        mark = (at, last)
    watch.execute("delete from supervisor.job")
    watch.execute("delete from supervisor.session where id = %s", [session])
    return percentile(took, 50), percentile(took, 99)
