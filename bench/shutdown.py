"""How soon after SIGTERM the jobs that a service holds and has not started are claimable again.

Workers are warm, so each has claimed ahead; then come jobs that take a second. When every worker runs as many as it may
and holds more, the service gets SIGTERM, and the database is asked until no more jobs are leased than run: what anybody
else would see. Asking adds up to a millisecond or two. Without this they would come back when their lease had passed,
which is the baseline.
"""

import argparse
import os
import signal
import time
from typing import Any, Final

import psycopg

from bench.ground import Ground, opened, place, row, until
from bench.jobs import hold
from bench.report import Report, Say, Shown, Table
from bench.service import BenchService
from bench.stats import Summary, percentile
from supervisor.settings import Settings

HELP: Final = "from SIGTERM to unstarted jobs being claimable again, with a full backlog"
_LONG_S: Final = 1.5
_DEADLINE_S: Final = 30.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--rounds", type=int, metavar="N", help="shutdowns (default: 5, or 20 if --full)")
    parser.add_argument("--processes", type=int, default=4, metavar="N", help="workers (default: %(default)s)")
    parser.add_argument(
        "--concurrency", type=int, default=10, metavar="N", help="jobs a worker runs at once (default: %(default)s)"
    )
    parser.add_argument("--prefetch", type=int, default=40, metavar="N", help="claimed ahead (default: %(default)s)")
    place(parser)


def run(options: argparse.Namespace, say: Say) -> Report:
    """Stop it again and again."""
    rounds = options.rounds or (20 if options.full else 5)
    found = []
    with opened(options, say) as ground:
        for number in range(1, rounds + 1):
            found.append(_round(ground, options, f"shutdown_{number}"))
            say(f"round {number}: {found[-1][1]:.0f} unstarted jobs are claimable after {found[-1][0] * 1000:.1f} ms")
    took = Summary.of([one[0] for one in found])
    held = percentile([one[1] for one in found], 50)
    lease_s = float(Settings.model_fields["lease_s"].default)
    line = (
        f"shutdown: {held:.0f} unstarted jobs are claimable again {took.median * 1000:.1f} ms after SIGTERM (at most "
        f"{took.high * 1000:.1f} ms in {rounds}), at a lease of {lease_s:g} s ({options.processes} workers; "
        f"{ground.where()})"
    )
    table = Table("shutdown", ("", "ms"), [
        ("median", f"{took.median * 1000:.1f}"), ("lowest", f"{took.low * 1000:.1f}"),
        ("highest", f"{took.high * 1000:.1f}"), ("lease", f"{lease_s * 1000:.0f}"),
    ])  # fmt: skip
    return Report(
        line,
        {**ground.facts(), "seconds": took.as_dict(), "held": held, "lease_s": lease_s},
        [table],
        None,
        [Shown("shutdown", "shutdown with a full backlog: unstarted jobs claimable again", "<= 100 ms after SIGTERM",
               f"{took.median * 1000:.1f} ms (at most {took.high * 1000:.1f})", took.high <= 0.1)],
    )  # fmt: skip


def _round(ground: Ground, options: argparse.Namespace, database: str) -> tuple[float, float]:
    """Seconds until they are claimable, and how many there were."""
    running = options.processes * options.concurrency
    settings = {"processes": options.processes, "concurrency": options.concurrency, "prefetch": options.prefetch}
    with (
        ground.database(database) as url,
        psycopg.connect(url, autocommit=True) as watch,
        BenchService(url, **settings) as service,
    ):
        until(watch, service, "select exists (select from supervisor.waiting)", 30)
        hold.enqueue_many(watch, [{"seconds": 0.001}] * (100 * running) + [{"seconds": _LONG_S}] * (20 * running))
        held = _full(watch, service, running)
        began = time.monotonic()
        os.kill(service.pid, signal.SIGTERM)
        while _leased(watch) > running:
            if time.monotonic() - began > _DEADLINE_S:
                raise RuntimeError(f"jobs are still held {_DEADLINE_S:g} s after SIGTERM: {service.tail()}")
            time.sleep(0.0005)
        took = time.monotonic() - began
        service.wait()
    return took, held - running


def _full(watch: psycopg.Connection[Any], service: BenchService, running: int) -> int:
    """Wait until all workers run long jobs and hold more; how many jobs are held."""
    deadline = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline:
        service.check()
        short = row(watch, "select count(*) from supervisor.job where payload->>'seconds' = '0.001'")[0]
        held = _leased(watch)
        if not short and held > running:
            return held
        time.sleep(0.005)
    raise RuntimeError(f"the workers do not hold more than {running} jobs: {service.tail()}")


def _leased(watch: psycopg.Connection[Any]) -> int:
    return int(row(watch, "select count(*) from supervisor.job where lease is not null")[0])
