"""How fast jobs are run at the head of long queues, against a short one in the same run.

A database for each on one server: one with just the jobs that a round runs, the others with a backlog besides. In turns
the service runs so many jobs of each. Filling is one insert-select, then vacuum and a checkpoint: a backlog that has
been there.
"""

import argparse
from contextlib import ExitStack
from typing import Final

from bench.drain import at_once
from bench.emptying import SETTINGS, Case, add, compared, emptied, settle, told
from bench.ground import in_turns, opened, place
from bench.report import Chart, Report, Say, Shown, Table
from bench.stats import Summary

HELP: Final = "jobs a second at the head of a long backlog, against a short queue"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--backlog", metavar="N,...", help="queued (default: 1000000, and 10000000 besides if --full)")
    parser.add_argument(
        "--jobs", type=int, default=100_000, metavar="N", help="jobs run a round (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds of each (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=4, metavar="N", help="workers (default: %(default)s)")
    place(parser)


def run(options: argparse.Namespace, say: Say) -> Report:
    """Fill, and measure all in turns."""
    backlogs = [
        int(word) for word in (options.backlog or ("1000000,10000000" if options.full else "1000000")).split(",")
    ]
    short = "short queue"
    settings = {"processes": options.processes}
    with opened(options, say) as ground, ExitStack() as stack:
        empty = stack.enter_context(ground.database("empty"))
        cases = {short: Case(short, empty, settings)}
        for backlog in backlogs:
            full = stack.enter_context(ground.database(f"filled_{backlog}"))
            say(f"filling {backlog:,} jobs")
            add(full, backlog + options.rounds * options.jobs * 2)
            settle(full)
            cases[_name(backlog)] = Case(_name(backlog), full, settings)

        def one(name: str, number: int) -> float:
            if name == short:
                # Somewhat more than are run: what a service holds when it stops is not counted.
                add(empty, options.jobs + 2_000)
                settle(empty)  # as the long one: what was written a moment ago costs its first reader more
            return emptied(cases[name], options.jobs)

        rates = in_turns(list(cases), options.rounds, one)
        rows = told(rates, short, say)
        most = max(backlogs)
        ratios = {backlog: compared(_name(backlog), short, rates) for backlog in backlogs}
        line = (
            f"backlog: {most:,} queued: {ratios[most].median:.2f} x the rate of a short queue "
            f"({options.processes} workers, up to {at_once(SETTINGS)} jobs a claim; {ground.where()})"
        )
        return Report(
            line,
            {**ground.facts(), "backlogs": backlogs,
             "jobs_per_s": {k: Summary.of(v).as_dict() for k, v in rates.items()},
             "ratio": {str(backlog): ratio.as_dict() for backlog, ratio in ratios.items()}},
            [Table("backlog", ("", "jobs/s", "spread", "/ short queue"), rows)],
            Chart("backlog", "jobs/s", "bars", {name: [Summary.of(found).median] for name, found in rates.items()}),
            [
                Shown(f"backlog-{backlog}", f"backlog of {backlog:,}", ">= 0.9 x the short queue",
                      f"{ratio.median:.2f} x ({ratio.low:.2f}-{ratio.high:.2f})", ratio.median >= 0.9)
                for backlog, ratio in ratios.items()
            ],
        )  # fmt: skip


def _name(backlog: int) -> str:
    return f"{backlog:,} queued"
