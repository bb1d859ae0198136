"""How fast jobs are run by 1 to 64 workers on the same machine, against the fewest.

Beyond the number of cores more workers bring nothing; what is to be seen is what they cost.
"""

import argparse
from contextlib import ExitStack
from typing import Final

from bench.emptying import Case, emptied, told
from bench.ground import in_turns, opened, place
from bench.report import Chart, Report, Say, Table
from bench.stats import Summary

HELP: Final = "jobs a second by 1-64 workers, against one"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--workers", metavar="N,...", help="default: 1,4,16, and 2,8,32,64 if --full")
    parser.add_argument(
        "--jobs", type=int, default=100_000, metavar="N", help="jobs run a round (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds of each (default: %(default)s)")
    place(parser)


def run(options: argparse.Namespace, say: Say) -> Report:
    """Measure each in turns."""
    counts = list(map(int, (options.workers or ("1,2,4,8,16,32,64" if options.full else "1,4,16")).split(",")))
    names = {f"{count} worker{'s' if count > 1 else ''}": count for count in counts}
    with opened(options, say) as ground, ExitStack() as stack:
        cases = {
            name: Case(name, stack.enter_context(ground.database(f"scale_{count}")), {"processes": count})
            for name, count in names.items()
        }

        def one(name: str, number: int) -> float:
            # Added when all are ready: starting many processes takes what the jobs would.
            return emptied(cases[name], options.jobs, adding=options.jobs + 1_000)

        rates = in_turns(list(names), options.rounds, one)
        rows = told(rates, next(iter(names)), say)
        medians = {name: Summary.of(found).median for name, found in rates.items()}
        best, last = max(medians, key=lambda name: medians[name]), list(names)[-1]
        line = (
            f"scale: best with {best}; {last} run {medians[last] / medians[best]:.2f} x as many jobs a second "
            f"({ground.where()})"
        )
        return Report(
            line,
            {**ground.facts(), "jobs": options.jobs,
             "jobs_per_s": {k: Summary.of(v).as_dict() for k, v in rates.items()}},
            [Table("scale", ("", "jobs/s", "spread", f"/ {next(iter(names))}"), rows)],
            Chart("scale: jobs/s by workers", "jobs/s", "lines", {"service": list(medians.values())},
                  x=[str(count) for count in counts], x_title="workers"),
        )  # fmt: skip
