"""How fast jobs are run beside a long history, against an empty one in the same run.

Two databases on one server: one whose history, today's partition, was filled by insert-select; one without. In turns
the same jobs are queued and run on each, history on. How many rows there are is bounded by the disk: about 250 bytes
each with their index; --rows is cut to what leaves half of the free space.
"""

import argparse
import shutil
from typing import Final

import psycopg

from bench.emptying import Case, add, compared, emptied, settle, told
from bench.ground import in_turns, opened, place
from bench.jobs import noop
from bench.report import Chart, Report, Say, Shown, Table
from bench.stats import Summary

HELP: Final = "jobs a second beside a long history, against an empty one"
_ROW_BYTES: Final = 250
_STEP: Final = 5_000_000


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--rows", type=int, metavar="N", help="finished (default: 2000000, or 100000000 if --full)")
    parser.add_argument(
        "--jobs", type=int, default=100_000, metavar="N", help="jobs run a round (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds of each (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=4, metavar="N", help="workers (default: %(default)s)")
    place(parser)


def run(options: argparse.Namespace, say: Say) -> Report:
    """Fill, and measure both in turns."""
    settings = {"processes": options.processes}
    with opened(options, say) as ground, ground.database("filled") as full, ground.database("empty") as empty:
        rows = options.rows or (100_000_000 if options.full else 2_000_000)
        room = shutil.disk_usage(ground.server.home).free // 2 // _ROW_BYTES
        if rows > room:
            say(f"the disk has room for {room:,} finished jobs, not for {rows:,}")
            rows = room
        say(f"filling {rows:,} finished jobs")
        _fill(full, rows)
        settle(full)
        long, short = f"{rows:,} finished", "empty history"
        cases = {short: Case(short, empty, settings), long: Case(long, full, settings)}

        def one(name: str, number: int) -> float:
            add(cases[name].url, options.jobs + 2_000)
            return emptied(cases[name], options.jobs)

        rates = in_turns([short, long], options.rounds, one)
        table = told(rates, short, say)
        ratio = compared(long, short, rates)
        line = (
            f"history: {rows:,} finished jobs: {ratio.median:.2f} x the rate with an empty history "
            f"({options.processes} workers; {ground.where()})"
        )
        return Report(
            line,
            {**ground.facts(), "rows": rows, "jobs_per_s": {k: Summary.of(v).as_dict() for k, v in rates.items()},
             "ratio": ratio.as_dict()},
            [Table("history", ("", "jobs/s", "spread", "/ empty history"), table)],
            Chart("history", "jobs/s", "bars", {name: [Summary.of(found).median] for name, found in rates.items()}),
            [Shown("history", f"history of {rows:,}", ">= 0.9 x an empty history",
                   f"{ratio.median:.2f} x ({ratio.low:.2f}-{ratio.high:.2f})", ratio.median >= 0.9)],
        )  # fmt: skip


def _fill(url: str, rows: int) -> None:
    """Finished jobs of the last minutes, with ids below zero: what is queued later has higher ones."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("set synchronous_commit = off")
        for first in range(0, rows, _STEP):
            conn.execute(
                "insert into supervisor.history (id, finished_at, started_at, run_at, created_at, claims, attempts,"
                " max_attempts, crashes, max_crashes, priority, queue, kind)"
                " select n, at, at, at, at, 1, 1, 20, 0, 3, 0, 'default', %s"
                " from generate_series(%s::bigint, %s::bigint) n, lateral (select now() + n * interval '1 us' as at) a",
                [noop.kind, first - rows, min(first + _STEP, rows) - rows - 1],
            )
