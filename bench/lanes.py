"""How fast jobs are run that lie in many queues or priorities, against as many in one.

A database for each; in turns the same number of jobs is queued, spread evenly, and run.
"""

import argparse
from contextlib import ExitStack
from typing import Final

from bench import parts
from bench.emptying import Case, add, compared, emptied, told
from bench.ground import in_turns, opened, place
from bench.report import Chart, Report, Say, Shown, Table
from bench.stats import Summary

SCATTERED: Final = "1 queue, scattered"
_PARTS_OF: Final = 400
HELP: Final = "jobs a second out of 1-500 queues and out of 20 priorities, against one queue"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--queues", default="1,10,100,500", metavar="N,...", help="queues (default: %(default)s)")
    parser.add_argument("--priorities", type=int, default=20, metavar="N", help="of one queue (default: %(default)s)")
    parser.add_argument(
        "--jobs", type=int, metavar="N", default=100_000, help="jobs run a round (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds of each (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=4, metavar="N", help="workers (default: %(default)s)")
    place(parser)


def run(options: argparse.Namespace, say: Say) -> Report:
    """Measure each in turns."""
    jobs = options.jobs
    spread = {f"{n} queue{'s' if n > 1 else ''}": (n, 1, 1) for n in map(int, options.queues.split(","))}
    spread["1 queue"] = (1, 1, 1)
    spread[f"{options.priorities} priorities"] = (1, options.priorities, 1)
    # What many queues cost by their jobs' places in the table alone.
    spread[SCATTERED] = (1, 1, max(map(int, options.queues.split(","))))
    most = max(spread, key=lambda name: spread[name][0])
    with opened(options, say) as ground, ExitStack() as stack:
        cases = {
            name: Case(name, stack.enter_context(ground.database(f"lanes_{at}")), {"processes": options.processes})
            for at, name in enumerate(spread)
        }

        def one(name: str, number: int) -> float:
            queues, priorities, scattered = spread[name]
            add(cases[name].url, jobs + 2_000, queues=queues, priorities=priorities, scattered=scattered)
            return emptied(cases[name], jobs)

        rates = in_turns(list(spread), options.rounds, one)
        rows = told(rates, "1 queue", say)
        made_of = {}
        for name in ("1 queue", SCATTERED):
            with ground.database(f"parts_{spread[name][2]}") as url:
                batch = min(_PARTS_OF, jobs)
                found = parts.measure(url, batch, jobs // batch, scattered=spread[name][2])
                made_of[name] = found.server
        profile = Table(
            "lanes: what a job takes of the server",
            ("us per job, alone on the machine", *made_of),
            [(part, *(f"{found[part]:.2f}" for found in made_of.values())) for part in parts.SERVER],
        )
        say(profile.markdown())
        ratio = compared(most, "1 queue", rates)
        line = (
            f"lanes: jobs in {most}: {ratio.median:.2f} x the rate of one queue "
            f"({options.processes} workers; {ground.where()})"
        )
        return Report(
            line,
            {**ground.facts(), "jobs": jobs, "jobs_per_s": {k: Summary.of(v).as_dict() for k, v in rates.items()},
             "ratio": ratio.as_dict(), "server_us": made_of},
            [Table("lanes", ("", "jobs/s", "spread", "/ 1 queue"), rows), profile],
            Chart("lanes", "jobs/s", "bars", {name: [Summary.of(found).median] for name, found in rates.items()}),
            [Shown("lanes", most, ">= 0.9 x one queue",
                   f"{ratio.median:.2f} x ({ratio.low:.2f}-{ratio.high:.2f})", ratio.median >= 0.9)],
        )  # fmt: skip
