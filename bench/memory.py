"""What a worker takes of memory beyond the pages it shares, and whether that grows with the jobs it has run.

A worker is forked from a process that has imported everything; what is its own is what it has written since: the
private pages of /proc/PID/smaps_rollup (USS). PSS counts shared pages by their share. The baseline is what a fresh
Python process takes that has imported the same.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import psycopg

from bench.emptying import SETTINGS, add
from bench.ground import opened, place, row, until
from bench.report import Chart, Report, Say, Shown, Table
from bench.service import ROOT, BenchService

HELP: Final = "memory of a worker beyond shared pages, and of the parent, over many jobs"
_MIB: Final = 2**20


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--jobs", type=int, metavar="N", help="jobs run (default: 200000, or 1000000 if --full)")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="looks (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="workers (default: %(default)s)")
    place(parser)


def run(options: argparse.Namespace, say: Say) -> Report:
    """Run jobs in steps, and look after each."""
    jobs = options.jobs or (1_000_000 if options.full else 200_000)
    step = max(1, jobs // options.steps)
    looks: list[dict[str, float]] = []
    with (
        opened(options, say) as ground,
        ground.database("memory") as url,
        psycopg.connect(url, autocommit=True) as watch,
        BenchService(url, processes=options.processes, **SETTINGS) as service,
    ):
        until(watch, service, "select exists (select from supervisor.waiting)", 30)
        looks.append(_look(service, 0))
        for number in range(1, options.steps + 1):
            add(url, step)
            until(watch, service, "select not exists (select from supervisor.job)", 300, 0.2)
            time.sleep(0.5)
            looks.append(_look(service, number * step))
            say(
                f"{number * step:,} jobs: a worker {looks[-1]['worker_uss']:.1f} MiB of its own "
                f"({looks[-1]['worker_pss']:.1f} MiB PSS), the parent {looks[-1]['parent_uss']:.1f} MiB"
            )
        done = row(watch, "select count(*) from supervisor.history")[0]
        if done != step * options.steps:
            raise RuntimeError(f"{step * options.steps} jobs were queued and {done} are in the history")
    fresh = _fresh()
    rows = [
        (f"{look['jobs']:,.0f}", *(f"{look[key]:.1f}" for key in ("worker_uss", "worker_pss", "parent_uss")))
        for look in looks
    ]
    first, last = looks[1]["worker_uss"], looks[-1]["worker_uss"]
    most = max(look["worker_uss"] for look in looks)
    table = Table("memory (MiB)", ("jobs run", "worker, its own", "worker, PSS", "parent, its own"), rows)
    line = (
        f"memory: a worker takes {last:.1f} MiB beyond shared pages after {looks[-1]['jobs']:,.0f} jobs "
        f"({last - first:+.1f} MiB since the first {looks[1]['jobs']:,.0f}), {last / fresh:.2f} x a fresh process that "
        f"has imported the same ({options.processes} workers)"
    )
    return Report(
        line,
        {**ground.facts(), "looks": looks, "fresh_uss_mib": fresh},
        [table],
        Chart("memory of a worker beyond shared pages", "MiB", "lines",
              {"worker": [look["worker_uss"] for look in looks], "parent": [look["parent_uss"] for look in looks]},
              x=[f"{look['jobs']:,.0f}" for look in looks], x_title="jobs run"),
        [
            Shown("memory", "worker memory beyond shared pages", "<= 15 MB", f"{most * _MIB / 1e6:.1f} MB",
                  most * _MIB <= 15e6),
            Shown("memory-growth", f"the same over {looks[-1]['jobs']:,.0f} jobs", "flat (within 1 MB)",
                  f"{(last - first) * _MIB / 1e6:+.1f} MB", (last - first) * _MIB <= 1e6),
        ],
    )  # fmt: skip


def _look(service: BenchService, jobs: int) -> dict[str, float]:
    workers = [_memory(pid) for pid in service.worker_pids()]
    return {
        "jobs": jobs,
        "worker_uss": max(uss for uss, _ in workers),
        "worker_pss": max(pss for _, pss in workers),
        "parent_uss": _memory(service.pid)[0],
    }


def _memory(pid: int | str) -> tuple[float, float]:
    """Private pages and share of all pages, in MiB."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        found[name] = int(value.split()[0]) * 1024 / _MIB
    return found["Private_Clean"] + found["Private_Dirty"], found["Pss"]


def _fresh() -> float:
    """Private pages of a new process that has imported what a worker has."""
    code = "import supervisor.worker.main, bench.jobs, sys; print(flush=True); sys.stdin.readline()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = _memory(process.pid)[0]
        process.communicate("\n", timeout=10)
    return found
