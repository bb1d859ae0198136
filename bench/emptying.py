"""How fast a service works on what lies in a database, for benches that compare databases or settings.

The rate is that of the middle: jobs that finished between the first tenth and the last of a round, over that time, by
the database's clock, as the history has them. So it does not matter how a service starts or what it leaves.
"""

import time
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from bench.ground import row
from bench.jobs import noop
from bench.report import Say
from bench.service import BenchService
from bench.stats import Summary, readable

NOTE: Final = "x" * 100
_DEADLINE_S: Final = 180.0
_STEP: Final = 1_000_000  # a statement's rows are kept for its trigger until its end
SETTINGS: Final = {"concurrency": 10}


@dataclass(frozen=True, slots=True)
class Case:
    """What is compared: a database, and the settings of the service on it."""

    name: str
    url: str
    settings: dict[str, Any]


def emptied(case: Case, jobs: int, *, adding: int = 0) -> float:
    """Jobs a second while *jobs* of those that are queued are run; *adding* so many once the service is ready."""
    with psycopg.connect(case.url, autocommit=True) as watch:
        # Jobs are run in the order of their ids, so what this round ends is above what was ended before.
        floor = row(watch, "select coalesce(max(id), 0) from supervisor.history")[0]
        with BenchService(case.url, **SETTINGS, **case.settings) as service:
            if adding:
                add(case.url, adding)
            began = time.monotonic()
            while (done := row(watch, "select count(*) from supervisor.history where id > %s", [floor])[0]) < jobs:
                service.check()
                took = time.monotonic() - began
                if took > _DEADLINE_S:
                    raise RuntimeError(f"{case.name}: {done} of {jobs} jobs after {_DEADLINE_S:g} s: {service.tail()}")
                # Counting costs what is measured, so it is done as rarely as the end is far.
                time.sleep(min(2.0, max(0.1, took * (jobs - done) / done * 0.6)) if done else 0.1)
        return _middle(watch, floor, jobs)


def add(url: str, jobs: int, *, queues: int = 1, priorities: int = 1, scattered: int = 1) -> None:
    """Queue no-op jobs, spread evenly over queues and priorities; *scattered*: those that follow each other in a queue
    lie so many rows apart in the table, as jobs of so many queues do."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("set synchronous_commit = off")
        for first in range(1, jobs + 1, _STEP):
            conn.execute(
                "insert into supervisor.job (kind, payload, queue, priority, run_at)"
                " select %s, jsonb_build_object('n', n, 'note', %s::text),"
                " case when %s = 1 then 'default' else 'queue_' || n %% %s end, (n / %s) %% %s,"
                # Not below the lane's mark, where the last round ended: a sweep would move them up to it, one by one.
                " case when %s = 1 then clock_timestamp()"
                " else now() + interval '1 us' * (n %% %s * (%s / %s + 1) + n / %s) end"
                " from generate_series(%s::int, %s::int) n",
                [
                    noop.kind,
                    NOTE,
                    queues,
                    queues,
                    queues,
                    priorities,
                    scattered,
                    scattered,
                    jobs,
                    scattered,
                    scattered,
                    first,
                    min(jobs, first + _STEP - 1),
                ],
            )


def settle(url: str) -> None:
    """Bring a filled database to rest: vacuumed, analyzed, on disk."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("vacuum (freeze, analyze) supervisor.job")
        conn.execute("vacuum (freeze, analyze) supervisor.history")
        conn.execute("checkpoint")


def compared(case: str, base: str, rates: dict[str, list[float]]) -> Summary:
    """The rate of *case* in those of *base*, round by round."""
    return Summary.of([one / other for one, other in zip(rates[case], rates[base], strict=True)])


def told(rates: dict[str, list[float]], base: str, say: Say) -> list[tuple[str, ...]]:
    """The rows of a table: name, jobs/s, spread, ratio."""
    rows: list[tuple[str, ...]] = []
    for name, found in rates.items():
        one = Summary.of(found)
        ratio = compared(name, base, rates)
        rows.append(
            (name, readable(one.median), f"{readable(one.low)}-{readable(one.high)}",
             "-" if name == base else f"{ratio.median:.2f} x ({ratio.low:.2f}-{ratio.high:.2f})")
        )  # fmt: skip
        say("  ".join(rows[-1]))
    return rows


def _middle(conn: psycopg.Connection[Any], floor: int, jobs: int) -> float:
    count, seconds = row(
        conn,
        "select count(*), extract(epoch from max(finished_at) - min(finished_at))::float8 from ("
        " select finished_at, row_number() over (order by finished_at) as n from supervisor.history"
        " where id > %s) h where n between %s and %s",
        [floor, jobs // 10, jobs - jobs // 10],
    )
    if not seconds:
        raise RuntimeError(f"{jobs} jobs are too few to time")
    return float(count / seconds)
