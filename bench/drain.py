"""How fast a backlog of no-op jobs empties, and how that compares with plain SQL.

A round of the service: a fresh migrated database; `supervisor run` is started and waits, ready and idle; all jobs are
committed at once (one COPY by enqueue_many, checkpoint before the commit); the clock is the database's, from
the first job's start to the last one's acknowledgement, as history has them. History is on, as by default. The same
round then runs the plain table of pgbench.py: as many jobs, rows of about the same size.

Processor time is that of the round, from the commit on, per job: where the next improvement is.
"""

import argparse
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import psycopg

from bench import machine, pgbench
from bench.jobs import noop
from bench.report import Report, Say
from bench.server import BenchServer
from bench.service import BenchService
from bench.stats import Summary, readable
from supervisor.db.migrate import migrate

HELP: Final = "how fast workers empty a backlog of no-op jobs, against plain SQL by pgbench in the same run"
NOTE: Final = "x" * 100
ROUND_DEADLINE_S: Final = 300.0
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Round:
    """One round of the service.

    Attributes:
        seconds: From first start to last acknowledgement, by the database's clock.
        wall_s: From the commit to the empty queue, by ours: wake-up and looking included.
        cpu_us: Processor time per job in microseconds: workers, parent, server.
    """

    jobs: int
    seconds: float
    wall_s: float
    row_bytes: float
    cpu_us: dict[str, float]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--jobs", type=int, default=30_000, metavar="N", help="jobs per round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of each (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=4, metavar="N", help="workers (default: %(default)s)")
    parser.add_argument(
        "--concurrency", type=int, default=10, metavar="N", help="jobs a worker runs at once (default: %(default)s)"
    )
    parser.add_argument(
        "--prefetch", type=int, default=40, metavar="N", help="jobs claimed beyond these (default: %(default)s)"
    )
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where the server's files go (default: temporary)")


def run(options: argparse.Namespace, say: Say) -> Report:
    """Measure in turns: service, plain, plain, service, service, plain, ..."""
    settings = {"processes": options.processes, "concurrency": options.concurrency, "prefetch": options.prefetch}
    with BenchServer(options.dir) as server:
        found = machine.facts(server.home)
        shown = server.settings()
        say(machine.written(found))
        if found["load_1min"] > 0.25 * found["cores"]:
            say("others are at work on this machine: the figures will be low, and the ratio uncertain")
        say("PostgreSQL " + ", ".join(f"{key} {value}" for key, value in shown.items()))
        ours: list[Round] = []
        plain: list[pgbench.Drained] = []
        for number in range(1, options.rounds + 1):
            # Whoever comes second in a pair comes first in the next one: the machine drifts.
            if number % 2:
                ours.append(_service_round(server, f"service_{number}", options.jobs, settings))
            plain.append(_plain_round(server, f"plain_{number}", options.jobs))
            if not number % 2:
                ours.append(_service_round(server, f"service_{number}", options.jobs, settings))
            say(
                f"round {number}: service {readable(ours[-1].jobs / ours[-1].seconds)} jobs/s "
                f"({ours[-1].seconds:.2f} s, {ours[-1].wall_s:.2f} s from commit to empty), "
                f"plain SQL {readable(plain[-1].jobs / plain[-1].seconds)} jobs/s ({plain[-1].seconds:.2f} s)"
            )
    return _report(ours, plain, settings, found, shown, say)


def _service_round(server: BenchServer, database: str, jobs: int, settings: dict[str, int]) -> Round:
    url = server.create(database)
    migrate(url)
    with (
        psycopg.connect(url, autocommit=True) as watch,
        psycopg.connect(url) as conn,
        BenchService(url, **settings) as service,
    ):
        # Until it says that it waits, enqueueing would not wake it.
        _until(watch, service, "select exists (select from supervisor.waiting)", time.monotonic() + 30)
        noop.enqueue_many(conn, [{"n": n, "note": NOTE} for n in range(jobs)])
        row_bytes = _row(conn, "select avg(pg_column_size(j)) from (select * from supervisor.job limit 1000) j")[0]
        watch.execute("checkpoint")
        before = _cpu(server, service)
        committed = time.monotonic()
        conn.commit()
        _until(watch, service, "select not exists (select from supervisor.job)", committed + ROUND_DEADLINE_S)
        wall_s = time.monotonic() - committed
        after = _cpu(server, service)
        count, seconds = _row(
            watch,
            "select count(distinct id)::int, extract(epoch from max(finished_at) - min(started_at))::float8"
            " from supervisor.history",
        )
    if count != jobs:
        raise RuntimeError(f"{jobs} jobs were enqueued and {count} are in the history: nothing was measured")
    server.drop(database)
    cpu_us = {who: round((after[who] - before[who]) / jobs * 1e6, 1) for who in after}
    return Round(jobs, seconds, wall_s, float(row_bytes or 0), cpu_us)


def _plain_round(server: BenchServer, database: str, jobs: int) -> pgbench.Drained:
    server.create(database)
    drained = pgbench.drain(server, database, noop.kind, noop.encode(n=0, note=NOTE), jobs)
    server.drop(database)
    return drained


def _until(conn: psycopg.Connection[Any], service: BenchService, question: str, deadline: float) -> None:
    while not _row(conn, question)[0]:
        service.check()
        if time.monotonic() > deadline:
            raise RuntimeError(f"still not so: {question}: {service.tail()}")
        time.sleep(_POLL_S)


def _row(conn: psycopg.Connection[Any], statement: str) -> Any:
    row = conn.execute(statement.encode()).fetchone()
    assert row is not None
    return row


def _cpu(server: BenchServer, service: BenchService) -> dict[str, float]:
    """Seconds so far; the server's are those of the processes it has now, which live through a round."""
    return {**service.cpu_s(), "server": sum(map(machine.cpu_s, machine.children(server.pid)))}


def _report(
    ours: list[Round],
    plain: list[pgbench.Drained],
    settings: dict[str, int],
    found: dict[str, Any],
    shown: dict[str, str],
    say: Say,
) -> Report:
    service = Summary.of([one.jobs / one.seconds for one in ours])
    wall = Summary.of([one.jobs / one.wall_s for one in ours])
    sql = Summary.of([one.jobs / one.seconds for one in plain])
    # Pair by pair: the two of a pair ran within seconds of each other.
    ratio = Summary.of(
        [one.jobs / one.seconds * other.seconds / other.jobs for one, other in zip(ours, plain, strict=True)]
    )
    cpu = {who: Summary.of([one.cpu_us[who] for one in ours]).median for who in ours[0].cpu_us}
    say(f"service    {service} jobs/s; from commit to empty queue {wall} jobs/s")
    say(f"plain SQL  {sql} jobs/s; {pgbench.CLIENTS} clients, {pgbench.BATCH} a batch, claim and delete, no history")
    say(f"ratio      {ratio}")
    say(f"rows       {ours[0].row_bytes:.0f} bytes (service), {plain[0].row_bytes:.0f} bytes (plain)")
    say("processor  " + ", ".join(f"{who} {readable(value)} us" for who, value in cpu.items()) + " per job")
    at_once = settings["concurrency"] + settings["prefetch"]
    line = (
        f"drain: {readable(service.median)} jobs/s ({readable(service.low)}-{readable(service.high)} in {len(ours)} "
        f"rounds), {ratio.median:.2f} x plain SQL by pgbench ({settings['processes']} workers, no-op jobs, "
        f"history on, up to {at_once} jobs a claim; {found['cores']} cores shared with "
        f"PostgreSQL {shown['server_version']}, fsync {shown['fsync']})"
    )
    figures = {
        "machine": found,
        "postgresql": shown,
        "settings": {**settings, "jobs": ours[0].jobs},
        "service": {"jobs_per_s": service.as_dict(), "wall_jobs_per_s": wall.as_dict(), "cpu_us_per_job": cpu},
        "plain": {"jobs_per_s": sql.as_dict(), "clients": pgbench.CLIENTS, "batch": pgbench.BATCH},
        "ratio": ratio.as_dict(),
        "rounds": [{"service": asdict(one), "plain": asdict(other)} for one, other in zip(ours, plain, strict=True)],
    }
    return Report(line, figures)
