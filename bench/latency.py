"""From a job's commit to the start of its handler, on an idle system.

One producer, in a process of its own, adds a job at a time with a pause of some milliseconds before each; its clock
is read when its commit has returned, the handler's first thing is to read the same clock. What it is compared with is
the least that LISTEN allows: a bare asyncpg loop that claims when it is notified. Everybody is alone on the server
while measured, and started anew each round. The first jobs of a round are left out: connections warm up.
"""

import argparse
import os
import socket
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psycopg

from bench import hops
from bench.drain import against, peers
from bench.ground import Ground, in_turns, opened, place, until
from bench.jobs import SOCKET, mark
from bench.peers.crew import Crew, tell
from bench.peers.env import Installed, install
from bench.peers.registry import PEERS
from bench.report import Chart, Report, Say, Shown, Table
from bench.service import BenchService
from bench.stats import Summary, percentile

HELP: Final = "from a job's commit to its handler's start on an idle system, against a bare LISTEN loop"
_WARM: Final = 20
_DEADLINE_S: Final = 60.0
_PAUSE_MS: Final = (5.0, 25.0)
# Where everybody polls and nobody listens, a job may wait for seconds.
_SLOW: Final = {"oban": 40, "procrastinate": 200}


@dataclass(frozen=True, slots=True)
class Round:
    """Percentiles of one round, in milliseconds."""

    jobs: int
    p50: float
    p99: float


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--jobs", type=int, metavar="N", help="jobs per round (default: 300, or 1000 if --full)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds of each (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=4, metavar="N", help="workers (default: %(default)s)")
    against(parser)
    place(parser)


def run(options: argparse.Namespace, say: Say) -> Report:
    """Measure everybody in turns."""
    jobs = options.jobs or (1000 if options.full else 300)
    others = peers(options, say)
    own = install(PEERS["service"], say)
    with opened(options, say) as ground:

        def one(name: str, number: int) -> Round:
            if name == "service":
                found = _service(ground, own, jobs, options.processes, f"latency_{number}")
            else:
                found = _peer(ground, others[name], min(jobs, _SLOW.get(name, jobs)), f"latency_{number}")
            say(f"round {number}: {name} p50 {found.p50:.2f} ms, p99 {found.p99:.2f} ms")
            return found

        rounds = in_turns(["service", *others], options.rounds, one)
        with ground.database("hops") as url:
            steps = hops.measure(url, jobs, _PAUSE_MS)
        say("steps: " + ", ".join(f"{step} {took:.2f} ms" for step, took in steps.items()))
        return _report(ground, rounds, others, steps, {"jobs": jobs, "processes": options.processes}, say)


def _service(ground: Ground, own: Installed, jobs: int, processes: int, database: str) -> Round:
    with (
        ground.database(database) as url,
        psycopg.connect(url, autocommit=True) as watch,
        Ear() as ear,
        BenchService(url, {SOCKET: str(ear.path)}, processes=processes) as service,
    ):
        until(watch, service, "select exists (select from supervisor.waiting)", 30)
        kind = {"BENCH_KIND": mark.kind}
        sent = tell(own, "produce", url, jobs + _WARM, *_PAUSE_MS, env=kind)["sent"]
        return _round(sent, ear.heard(len(sent), _DEADLINE_S))


def _peer(ground: Ground, peer: Installed, jobs: int, database: str) -> Round:
    with ground.database(database, schema=False) as url:
        tell(peer, "setup", url)
        # One process: with more, several would ask for the one job there is.
        with Crew(peer, url, processes=1, concurrency=10, mode="latency") as crew:
            crew.go()
            time.sleep(0.5)
            sent = tell(peer, "produce", url, jobs + _WARM, *_PAUSE_MS)["sent"]
            return _round(sent, crew.seen(len(sent), _DEADLINE_S))


def _round(sent: list[int], seen: dict[int, int]) -> Round:
    # A notification may overtake the commit's answer to the producer.
    took = [max(0.0, (seen[n] - at) / 1e6) for n, at in enumerate(sent) if n >= _WARM]
    return Round(len(took), percentile(took, 50), percentile(took, 99))


class Ear:
    """Hears by datagrams when handlers start. They are read at once: only a few may wait before senders do."""

    def __init__(self) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="bench-ear-")
        self.path = Path(self._place.name) / "ear"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._found: dict[int, int] = {}
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._socket.bind(os.fspath(self.path))
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"", os.fspath(self.path))
        self._thread.join(10)
        self._socket.close()
        self._place.cleanup()

    def heard(self, count: int, deadline_s: float) -> dict[int, int]:
        """Nanoseconds at which each of so many jobs started."""
        deadline = time.monotonic() + deadline_s
        while len(self._found) < count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(self._found)} of {count} jobs started within {deadline_s:g} s")
            time.sleep(0.01)
        return dict(self._found)

    def _read(self) -> None:
        while word := self._socket.recv(64):
            n, at = map(int, word.split())
            self._found[n] = at


def _report(
    ground: Ground, rounds: dict[str, list[Round]], others: dict[str, Installed], steps: dict[str, float],
    settings: dict[str, Any], say: Say,
) -> Report:  # fmt: skip
    p50 = {name: Summary.of([one.p50 for one in found]) for name, found in rounds.items()}
    p99 = {name: Summary.of([one.p99 for one in found]) for name, found in rounds.items()}
    table = Table(
        "latency",
        ("", "p50 ms", "spread", "p99 ms", "spread", "p50 / bare loop"),
        [
            (
                f"{name} {others[name].version}" if name in others and name != "bare" else name,
                f"{p50[name].median:.2f}", f"{p50[name].low:.2f}-{p50[name].high:.2f}",
                f"{p99[name].median:.2f}", f"{p99[name].low:.2f}-{p99[name].high:.2f}",
                f"{p50[name].median / max(p50['bare'].median, 1e-3):.2f} x",
            )
            for name in rounds
        ],
    )  # fmt: skip
    made_of = _steps(steps, p50["service"].median, p50["bare"].median)
    say(table.markdown())
    say(made_of.markdown())
    ratio = p50["service"].median / max(p50["bare"].median, 1e-3)
    line = (
        f"latency: {p50['service'].median:.2f} ms from commit to handler start (p99 {p99['service'].median:.2f} ms) on "
        f"an idle system, {ratio:.2f} x a bare LISTEN loop ({settings['processes']} workers, {settings['jobs']} jobs "
        f"a round; {ground.where()})"
    )
    shown = [
        Shown(
            "latency-bare", "latency, idle system: p50", "<= 1.4 x the bare loop",
            f"{ratio:.2f} x ({p50['service'].median:.2f} ms)", ratio <= 1.4,
        )
    ]  # fmt: skip
    if "graphile-worker" in rounds:
        for word, figures in (("p50", p50), ("p99", p99)):
            ours, theirs = figures["service"].median, figures["graphile-worker"].median
            shown.append(
                Shown(
                    f"latency-{word}", f"latency, idle system: {word}", f"<= graphile-worker's {theirs:.2f} ms",
                    f"{ours:.2f} ms", ours <= theirs,
                )
            )  # fmt: skip
    chart = Chart(
        "latency, p50: from commit to handler start", "ms", "bars",
        {name: [one.median] for name, one in p50.items()},
        spread={name: (one.low, one.high) for name, one in p50.items()},
    )  # fmt: skip
    return Report(
        line,
        {
            **ground.facts(),
            "settings": settings,
            "steps_ms": steps,
            "p50_ms": {name: one.as_dict() for name, one in p50.items()},
            "p99_ms": {name: one.as_dict() for name, one in p99.items()},
            "versions": {name: one.version for name, one in others.items()},
        },
        [table, made_of],
        chart,
        shown,
    )


def _steps(steps: dict[str, float], service_ms: float, bare_ms: float) -> Table:
    """What both are made of; what is left is Python: of the parent, of the worker, of the loop."""
    ours, theirs = steps["notice"] + steps["wake"] + steps["work"], steps["notice"] + steps["claim"]
    row = [(step, f"{took:.2f}", "") for step, took in steps.items()]
    return Table(
        "what a start is made of",
        ("step, p50 after a pause", "ms", "the rest"),
        [
            *row,
            ("bare loop: notice + claim", f"{theirs:.2f}", f"{bare_ms - theirs:+.2f}"),
            ("service: notice + wake + work", f"{ours:.2f}", f"{service_ms - ours:+.2f}"),
        ],
    )
