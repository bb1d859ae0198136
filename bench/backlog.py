"""How fast jobs are run at the head of a long queue, against a short one in the same run.

Two databases on one server: one with just the jobs that a round runs, one with a backlog besides. In turns the service
runs so many jobs of each. Filling is one insert-select, then vacuum and a checkpoint: a backlog that has been there.
"""

import argparse
from typing import Final

from bench.drain import at_once
from bench.emptying import SETTINGS, Case, add, compared, emptied, settle, told
from bench.ground import in_turns, opened, place
from bench.report import Chart, Report, Say, Shown, Table
from bench.stats import Summary

HELP: Final = "jobs a second at the head of a long backlog, against a short queue"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--backlog", type=int, metavar="N", help="queued (default: 1000000, or 10000000 if --full)")
    parser.add_argument(
        "--jobs", type=int, default=100_000, metavar="N", help="jobs run a round (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds of each (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=4, metavar="N", help="workers (default: %(default)s)")
    place(parser)


def run(options: argparse.Namespace, say: Say) -> Report:
    """Fill, and measure both in turns."""
    backlog = options.backlog or (10_000_000 if options.full else 1_000_000)
    long = f"{backlog:,} queued"
    short = "short queue"
    settings = {"processes": options.processes}
    with opened(options, say) as ground, ground.database("filled") as full, ground.database("empty") as empty:
        say(f"filling {backlog:,} jobs")
        add(full, backlog + options.rounds * options.jobs * 2)
        settle(full)
        cases = {short: Case(short, empty, settings), long: Case(long, full, settings)}

        def one(name: str, number: int) -> float:
            if name == short:
                # Somewhat more than are run: what a service holds when it stops is not counted.
                add(empty, options.jobs + 2_000)
                settle(empty)  # as the long one: what was written a moment ago costs its first reader more
            return emptied(cases[name], options.jobs)

        rates = in_turns([short, long], options.rounds, one)
        rows = told(rates, short, say)
        ratio = compared(long, short, rates)
        line = (
            f"backlog: {backlog:,} queued: {ratio.median:.2f} x the rate of a short queue "
            f"({options.processes} workers, up to {at_once(SETTINGS)} jobs a claim; {ground.where()})"
        )
        return Report(
            line,
            {**ground.facts(), "backlog": backlog, "jobs_per_s": {k: Summary.of(v).as_dict() for k, v in rates.items()},
             "ratio": ratio.as_dict()},
            [Table("backlog", ("", "jobs/s", "spread", "/ short queue"), rows)],
            Chart("backlog", "jobs/s", "bars", {name: [Summary.of(found).median] for name, found in rates.items()}),
            [Shown("backlog", f"backlog of {backlog:,}", ">= 0.9 x the short queue",
                   f"{ratio.median:.2f} x ({ratio.low:.2f}-{ratio.high:.2f})", ratio.median >= 0.9)],
        )  # fmt: skip
