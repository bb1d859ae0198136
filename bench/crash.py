"""How soon the jobs of a killed worker are queued again, and how soon another worker stands in its place.

Under a steady load one worker after the other is killed with SIGKILL. From the signal on, the database is asked
until (a) none of the jobs it held is leased to it any more, and (b) the worker that replaced it holds a job. Both
are what anybody else would see, commits included; asking adds up to two milliseconds. Without this the jobs would
come back when their lease had passed, which is printed beside it.
"""

import argparse
import os
import random
import signal
import time
from pathlib import Path
from typing import Any, Final

import psycopg

from bench import machine
from bench.jobs import hold
from bench.report import Report, Say
from bench.server import BenchServer
from bench.service import BenchService
from bench.stats import percentile, readable
from supervisor.db.migrate import migrate
from supervisor.settings import Settings

HELP: Final = "from SIGKILL of a worker to its jobs queued again, and to its replacement claiming"
_JOB_S: Final = 0.25
_LOW: Final = 1_000
_DEADLINE_S: Final = 60.0
_POLL_S: Final = 0.001


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--kills", type=int, default=100, metavar="N", help="workers killed (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=4, metavar="N", help="workers (default: %(default)s)")
    parser.add_argument(
        "--concurrency", type=int, default=10, metavar="N", help="jobs a worker runs at once (default: %(default)s)"
    )
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where the server's files go (default: temporary)")


def run(options: argparse.Namespace, say: Say) -> Report:
    """Kill, wait for both, and again."""
    lease_s = Settings.model_fields["lease_s"].default
    settings = {"processes": options.processes, "concurrency": options.concurrency, "lease_s": lease_s}
    with BenchServer(options.dir) as server:
        found = machine.facts(server.home)
        shown = server.settings()
        say(machine.written(found))
        if found["load_1min"] > 0.25 * found["cores"]:
            say("others are at work on this machine: the figures will be high")
        url = server.create("crash")
        migrate(url)
        # Workers that die by themselves so often would be restarted with a pause.
        service = BenchService(url, **settings, restart_budget=10_000, retry_base_s=0.05)
        with psycopg.connect(url, autocommit=True) as conn, service:
            rounds = [_kill(conn, service, options.processes) for _ in range(options.kills)]
    return _report(rounds, settings, found, shown, say)


def _kill(conn: psycopg.Connection[Any], service: BenchService, processes: int) -> dict[str, float]:
    """Kill a random worker that holds jobs; seconds until both, and how many jobs it held."""
    _feed(conn)
    slot, pid, session, held = _victim(conn, service, processes)
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    requeued_s = claiming_s = 0.0
    while not (requeued_s and claiming_s):
        left, others = _row(
            conn,
            "select exists (select from supervisor.job where lease = %s),"
            " exists (select from supervisor.job j join supervisor.session s on s.id = j.lease"
            " where s.name like '%%/' || %s and s.id <> %s and s.closed_at is null)",
            (session, str(slot), session),
        )
        after = time.monotonic() - killed
        requeued_s = requeued_s or (0.0 if left else after)
        claiming_s = claiming_s or (after if others else 0.0)
        if after > _DEADLINE_S:
            service.check()
            raise RuntimeError(f"worker {slot} was killed {after:.0f} s ago and is not made good: {service.tail()}")
        time.sleep(_POLL_S)
    return {"requeued_s": requeued_s, "claiming_s": claiming_s, "held": held}


def _victim(conn: psycopg.Connection[Any], service: BenchService, processes: int) -> tuple[int, int, int, int]:
    """Slot, pid, session and number of jobs of a worker, once all workers hold jobs."""
    deadline = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline:
        workers = conn.execute(
            "select substring(s.name from '[0-9]+$')::int, s.id, count(*)::int"
            " from supervisor.job j join supervisor.session s on s.id = j.lease"
            " where s.closed_at is null group by s.name, s.id"
        ).fetchall()
        pids = {int(event["slot"]): int(event["pid"]) for event in service.events("worker.ready")}
        if len(workers) == processes:
            slot, session, held = random.choice(workers)
            return slot, pids[slot], session, held
        service.check()
        time.sleep(0.02)
    raise RuntimeError(f"not every worker has jobs after {_DEADLINE_S:g} s: {service.tail()}")


def _feed(conn: psycopg.Connection[Any]) -> None:
    """See that every worker finds jobs."""
    if _row(conn, "select count(*) from (select from supervisor.job limit %s) j", (_LOW,))[0] < _LOW:
        hold.enqueue_many(conn, [{"seconds": _JOB_S}] * _LOW)


def _row(conn: psycopg.Connection[Any], statement: str, parameters: tuple[object, ...]) -> Any:
    row = conn.execute(statement.encode(), parameters).fetchone()
    assert row is not None
    return row


def _report(
    rounds: list[dict[str, float]], settings: dict[str, Any], found: dict[str, Any], shown: dict[str, str], say: Say
) -> Report:
    figures: dict[str, Any] = {}
    for name, words in (("requeued_s", "its jobs queued again"), ("claiming_s", "a replacement claiming")):
        values = [one[name] for one in rounds]
        figures[name] = {
            "median": percentile(values, 50),
            "p99": percentile(values, 99),
            "low": min(values),
            "high": max(values),
        }
        say(
            f"{words:24} median {_ms(figures[name]['median'])}, p99 {_ms(figures[name]['p99'])}, "
            f"{_ms(figures[name]['low'])} to {_ms(figures[name]['high'])}"
        )
    held = percentile([one["held"] for one in rounds], 50)
    say(f"{'lease':24} {settings['lease_s']:g} s: how long it would take without word of the death")
    again, claiming = figures["requeued_s"], figures["claiming_s"]
    line = (
        f"crash: from SIGKILL of a worker its {held:.0f} jobs are queued again after {_ms(again['median'])} "
        f"(p99 {_ms(again['p99'])}) and its replacement claims after {_ms(claiming['median'])} "
        f"(p99 {_ms(claiming['p99'])}), at a lease of {settings['lease_s']:g} s ({len(rounds)} kills, "
        f"{settings['processes']} workers under load; {found['cores']} cores shared with "
        f"PostgreSQL {shown['server_version']}, fsync {shown['fsync']})"
    )
    return Report(
        line,
        {
            "machine": found,
            "postgresql": shown,
            "settings": {**settings, "kills": len(rounds)},
            "lease_s": settings["lease_s"],
            "held": held,
            **figures,
            "rounds": rounds,
        },
    )


def _ms(seconds: float) -> str:
    return f"{readable(seconds * 1000)} ms"
