"""The lab of the demo, timed: 500 jobs of four kinds, one of which sleeps 900 ms, on four workers.

485 take a millisecond, 10 fail once, 4 fail at every attempt and die, one sleeps 900 ms: it is the floor, and the
baseline. The clock runs from the commit of all to nothing being queued or running. The service is warm.
"""

import argparse
import random
import time
from typing import Any, Final

import psycopg

from bench.ground import opened, place, until
from bench.report import Report, Say, Shown, Table
from bench.service import BenchService
from bench.stats import Summary
from handlers import lab
from supervisor import enqueue_many
from supervisor.handler import Handler

HELP: Final = "500 jobs, one of which sleeps 900 ms, from commit to all done"
FLOOR_S: Final = 0.9
KINDS: Final[dict[Handler[Any], int]] = {lab.email: 485, lab.flaky: 10, lab.broken: 4, lab.slow: 1}
_WARM: Final = 2_000


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds (default: 10, or 30 if --full)")
    parser.add_argument("--processes", type=int, default=4, metavar="N", help="workers (default: %(default)s)")
    place(parser)


def run(options: argparse.Namespace, say: Say) -> Report:
    """Run it again and again."""
    rounds = options.rounds or (30 if options.full else 10)
    with (
        opened(options, say) as ground,
        ground.database("lab") as url,
        psycopg.connect(url, autocommit=True) as watch,
        psycopg.connect(url) as conn,
        BenchService(url, processes=options.processes, handlers="handlers.lab") as service,
    ):
        until(watch, service, "select exists (select from supervisor.waiting)", 30)
        _round(watch, conn, service, {lab.email: _WARM})
        took = []
        for number in range(1, rounds + 1):
            took.append(_round(watch, conn, service, KINDS))
            say(f"round {number}: {took[-1] * 1000:.0f} ms")
            until(watch, service, "select exists (select from supervisor.waiting)", 30)
        found = Summary.of(took)
    line = (
        f"lab: {found.median * 1000:.0f} ms ({found.low * 1000:.0f}-{found.high * 1000:.0f}) for 500 jobs of which one "
        f"sleeps 900 ms, {found.median / FLOOR_S:.2f} x that sleep ({options.processes} workers; {ground.where()})"
    )
    table = Table("lab", ("", "ms"), [
        ("median", f"{found.median * 1000:.0f}"), ("lowest", f"{found.low * 1000:.0f}"),
        ("highest", f"{found.high * 1000:.0f}"), ("the longest job", f"{FLOOR_S * 1000:.0f}"),
    ])  # fmt: skip
    return Report(
        line,
        {**ground.facts(), "seconds": found.as_dict(), "floor_s": FLOOR_S},
        [table],
        None,
        [Shown("lab", "lab of 500 jobs, one sleeps 900 ms: median", "<= 970 ms", f"{found.median * 1000:.0f} ms",
               found.median <= 0.97)],
    )  # fmt: skip


def _round(
    watch: psycopg.Connection[Any],
    conn: psycopg.Connection[Any],
    service: BenchService,
    kinds: dict[Handler[Any], int],
) -> float:
    those = [handler for handler, count in kinds.items() for _ in range(count)]
    random.shuffle(those)
    enqueue_many(conn, [handler.from_payload({"n": n}) for n, handler in enumerate(those)])
    began = time.monotonic()
    conn.commit()
    until(watch, service, "select not exists (select from supervisor.job)", 60, 0.002)
    return time.monotonic() - began
