"""Minutes at full rate: whether the tables stay as they are, and whether looking after them stalls anybody.

Jobs are added as fast as they are run, for as long as --minutes says. Seen at even times: the rate, the share of
updates that were HOT, how large the queue's table and its indexes are, how many dead rows there are, how often
vacuums were at them, and the WAL. Under the same load then partitions and indexes are renewed (care.py).
"""

import argparse
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from types import TracebackType
from typing import Final, Self

import psycopg

from bench.care import INDEXES, Care, look_after, ms, pause_ms
from bench.emptying import SETTINGS, add
from bench.ground import Conn, Ground, opened, place, row, until
from bench.report import Chart, Report, Say, Shown, Table
from bench.service import BenchService
from bench.stats import readable

HELP: Final = "minutes at full rate: HOT updates, growth, vacuums; partitions and indexes renewed under load"
ORDINARY: Final = "ordinarily"
AFTER: Final = "meanwhile"
MOST_PAUSE_MS: Final = 500.0
_QUEUED: Final = 60_000
_ADDED: Final = 20_000
_LOOKS: Final = 12


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one time; counts are since the start of the database."""

    at: float
    finished: int
    updates: int
    hot: int
    dead: int
    vacuums: int
    heap_mb: float
    indexes_mb: float
    wal: int


@dataclass(frozen=True, slots=True)
class Step:
    """From one look to the next: jobs a second, the share of HOT updates, bytes of WAL per job."""

    rate: float
    hot: float
    wal: float

    @classmethod
    def between(cls, one: Look, other: Look) -> "Step":
        """What went on between two looks."""
        finished = other.finished - one.finished
        if finished <= 0:
            raise RuntimeError(f"no job finished from second {one.at:.0f} to {other.at:.0f}")
        return cls(
            finished / (other.at - one.at),
            (other.hot - one.hot) / max(1, other.updates - one.updates),
            (other.wal - one.wal) / finished,
        )


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--minutes", type=float, metavar="N", help="at full rate (default: 2, or 60 if --full)")
    parser.add_argument("--partitions", type=int, default=20, metavar="N", help="made, dropped (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=4, metavar="N", help="workers (default: %(default)s)")
    place(parser)


def run(options: argparse.Namespace, say: Say) -> Report:
    """Load, look, and look after the tables."""
    seconds = (options.minutes or (60 if options.full else 2)) * 60
    looks: list[Look] = []
    with (
        opened(options, say) as ground,
        ground.database("sustained") as url,
        psycopg.connect(url, autocommit=True) as watch,
        BenchService(url, **SETTINGS, processes=options.processes) as service,
        Feeder(url) as feeder,
    ):
        until(watch, service, "select exists (select from supervisor.history)", 60)
        began = time.monotonic()
        for number in range(_LOOKS + 1):
            time.sleep(max(0.0, began + seconds * number / _LOOKS - time.monotonic()))
            service.check()
            feeder.check()
            looks.append(_look(watch, began))
        before = looks[-1].finished
        found = look_after(watch, options.partitions, say)
        feeder.check()
        after = _finished(watch)
        feeder.stop()
        pauses = {ORDINARY: pause_ms(watch, looks[0].finished, before), AFTER: pause_ms(watch, before, after)}
    return _report(ground, looks, found, pauses, options.processes, say)


class Feeder:
    """Adds jobs as fast as they are run."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="feeder")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Add no more."""
        self._over.set()
        self._thread.join()

    def check(self) -> None:
        """Raise what has stopped it."""
        if self._error is not None:
            raise RuntimeError("nothing is added any more") from self._error

    def _run(self) -> None:
        try:
            with psycopg.connect(self._url, autocommit=True) as conn:
                added = 0
                while not self._over.is_set():
                    # By ids, which a sequence gives out one after the other: counting would cost what is measured.
                    if added - _finished(conn) < _QUEUED:
                        add(self._url, _ADDED)
                        added = row(conn, "select last_value from supervisor.job_id_seq")[0]
                    else:
                        self._over.wait(0.05)
        except BaseException as error:
            self._error = error


def _finished(conn: Conn) -> int:
    return int(row(conn, "select coalesce(max(id), 0) from supervisor.history")[0])


def _look(conn: Conn, began: float) -> Look:
    size = "pg_relation_size(to_regclass('supervisor.' || {})) / 1e6"
    seen = row(
        conn,
        "select n_tup_upd, n_tup_hot_upd, n_dead_tup, vacuum_count + autovacuum_count, pg_relation_size(relid) / 1e6,"
        f" (select sum({size.format('i')}) from unnest(%s::text[]) i), pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
        " from pg_stat_user_tables where relid = 'supervisor.job'::regclass",
        [list(INDEXES)],
    )
    updates, hot, dead, vacuums, heap_mb, indexes_mb, wal = seen
    return Look(
        time.monotonic() - began,
        _finished(conn),
        updates,
        hot,
        dead,
        vacuums,
        float(heap_mb),
        float(indexes_mb),
        int(wal),
    )


def _report(
    ground: Ground, looks: Sequence[Look], care: Care, pauses: dict[str, float], processes: int, say: Say
) -> Report:
    steps = [Step.between(*two) for two in pairwise(looks)]
    # Half of the time is a while for vacuums to come round; what grew by then grows no more.
    half = len(steps) // 2
    start, end = (
        statistics.median([step.rate for step in some]) for some in (steps[: half // 2], steps[-(half // 2) :])
    )
    ratio = end / start
    hot = (looks[-1].hot - looks[0].hot) / (looks[-1].updates - looks[0].updates)
    heap = _grown([look.heap_mb for look in looks], half)
    indexes = _grown([look.indexes_mb for look in looks], half)
    dead = _grown([look.dead for look in looks], half)
    minutes = looks[-1].at / 60
    rows = [
        (f"{look.at / 60:.1f}", readable(step.rate), f"{step.hot * 100:.1f}%", f"{look.heap_mb:.0f}",
         f"{look.indexes_mb:.0f}", f"{look.dead:,}", str(look.vacuums - looks[0].vacuums), f"{step.wal:.0f}")
        for step, look in zip(steps, looks[1:], strict=True)
    ]  # fmt: skip
    table = Table(
        "sustained",
        ("minute", "jobs/s", "HOT", "table MB", "indexes MB", "dead rows", "vacuums", "WAL B per job"),
        rows,
    )
    say(table.markdown())
    renewed = Table(
        "looked after under the same load",
        ("", "figure"),
        [
            ("partitions made", f"{len(care.made_s)}, each in {ms(care.made_s)}"),
            ("partitions dropped", f"{len(care.dropped_s)}, each in {ms(care.dropped_s)}"),
            ("tries to drop given up for others' locks", str(care.refused)),
            *(
                (f"{name} rebuilt", f"in {one.seconds:.1f} s, from {one.before_mb:.0f} MB to {one.after_mb:.0f} MB")
                for name, one in care.rebuilt.items()
            ),
            *((f"longest time without a finished job, {when}", f"{pause:.0f} ms") for when, pause in pauses.items()),
        ],
    )
    line = (
        f"sustained: {readable(end)} jobs/s, added and run, after {minutes:.0f} minutes of full rate, {ratio:.2f} x "
        f"the start, {hot * 100:.1f}% of updates HOT; while partitions and indexes were renewed no job finished for "
        f"{pauses[AFTER]:.0f} ms at most ({processes} workers; {ground.where()})"
    )
    after = f"full rate for {minutes:.0f} minutes"
    most = "<= 1.2 x the first"
    return Report(
        line,
        {**ground.facts(), "looks": [asdict(look) for look in looks], "care": asdict(care), "pauses_ms": pauses,
         "hot": hot, "grown": {"table": heap, "indexes": indexes, "dead": dead}, "ratio": ratio},
        [table, renewed],
        Chart("sustained: jobs/s, added and run, by minutes", "jobs/s", "lines",
              {"service": [step.rate for step in steps]}, x=[f"{look.at / 60:.1f}" for look in looks[1:]],
              x_title="minutes"),
        [
            Shown("sustained-rate", f"{after}: jobs/s", ">= 0.9 x the start", f"{ratio:.2f} x", ratio >= 0.9),
            Shown("sustained-hot", f"{after}: HOT updates", ">= 99%", f"{hot * 100:.1f}%", hot >= 0.99),
            Shown("sustained-growth", f"{after}: table and indexes, second half", most,
                  f"{heap:.2f} x and {indexes:.2f} x", max(heap, indexes) <= 1.2),
            Shown("sustained-vacuum", f"{after}: dead rows, second half", most, f"{dead:.2f} x", dead <= 1.2),
            Shown("sustained-pause", "partitions and indexes renewed at full rate: longest time without a finished job",
                  f"<= {MOST_PAUSE_MS:.0f} ms", f"{pauses[AFTER]:.0f} ms", pauses[AFTER] <= MOST_PAUSE_MS),
        ],
    )  # fmt: skip


def _grown(values: Sequence[float], half: int) -> float:
    """The most in the second half, in that of the first."""
    return max(values[half + 1 :]) / max(1, *values[: half + 1])
