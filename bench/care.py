"""Looking after the tables by the statements that a supervisor and an operator send, under whatever load there is.

Partitions of the history are made, old ones with rows are dropped, the queue's indexes are rebuilt. Whether anybody
noticed is told by the longest time in which no job finished.

Elsewhere: the load, and the report (sustained.py).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import psycopg

from bench.ground import Conn, row
from bench.jobs import noop
from bench.report import Say
from supervisor.db.statements import statement

INDEXES: Final = ("job_lane", "job_pkey", "job_unique")
_OLD_ROWS: Final = 20_000
_KEEP_S: Final = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """An index: how long that took, its size before and after."""

    seconds: float
    before_mb: float
    after_mb: float


@dataclass(frozen=True, slots=True)
class Care:
    """What was done under load: seconds of each partition made and dropped, tries given up, indexes."""

    made_s: list[float]
    dropped_s: list[float]
    refused: int
    rebuilt: dict[str, Rebuilt]


def look_after(conn: Conn, partitions: int, say: Say) -> Care:
    """Make and drop partitions, and rebuild the indexes."""
    _age(conn, partitions)
    made = [
        _timed(conn, statement("make_partitions", "supervisor"), {"days_ahead": ahead})
        for ahead in range(4, 4 + partitions)
    ]
    dropped, refused = list[float](), 0
    while len(dropped) < partitions:
        try:
            dropped.append(_timed(conn, statement("drop_partitions", "supervisor"), {"keep_s": _KEEP_S}))
        except psycopg.errors.LockNotAvailable:  # a supervisor would come again a minute later
            refused += 1
            if refused > 10 * partitions:
                raise
    rebuilt = {}
    for name in INDEXES:
        size = f"select pg_relation_size('supervisor.{name}') / 1e6"
        before = float(row(conn, size)[0])
        took = _timed(conn, f"reindex index concurrently supervisor.{name}".encode())
        rebuilt[name] = Rebuilt(took, before, float(row(conn, size)[0]))
    found = Care(made, dropped, refused, rebuilt)
    say(f"{partitions} partitions made, each in {ms(made)}; {partitions} dropped, each in {ms(dropped)}")
    for name, one in rebuilt.items():
        say(f"{name} rebuilt in {one.seconds:.1f} s: {one.before_mb:.0f} MB, then {one.after_mb:.0f} MB")
    return found


def ms(seconds: list[float]) -> str:
    """The longest of them in words."""
    return f"{1000 * max(seconds):.0f} ms at most"


def _age(conn: Conn, partitions: int) -> None:
    """Partitions of past days, with rows, as if the service had run then."""
    for age in range(10, 10 + partitions):
        day = row(conn, "select to_char(now() at time zone 'UTC' - %s * interval '1 day', 'YYYYMMDD')", [age])[0]
        for words in (
            f"create table supervisor.history_{day} (like supervisor.history including defaults including indexes)",
            f"insert into supervisor.history_{day} (id, finished_at, run_at, created_at, claims, attempts,"
            f" max_attempts, crashes, max_crashes, priority, queue, kind) select -n, at, at, at, 1, 1, 20, 0, 3, 0,"
            f" 'default', '{noop.kind}' from generate_series(1, {_OLD_ROWS}) n,"
            f" (select timestamptz '{day} 00:00+00') t (at)",
            f"alter table supervisor.history attach partition supervisor.history_{day} for values"
            f" from ('{day} 00:00+00') to (timestamptz '{day} 00:00+00' + interval '24 hours')",
        ):
            conn.execute(words.encode())


def _timed(conn: Conn, words: bytes, parameters: Mapping[str, object] | None = None) -> float:
    began = time.monotonic()
    conn.execute(words, parameters)
    return time.monotonic() - began


def pause_ms(conn: Conn, first: int, last: int) -> float:
    """The longest time in which none of these jobs finished."""
    found = row(
        conn,
        "select extract(epoch from max(at - before)) * 1000 from ("
        " select finished_at as at, lag(finished_at) over (order by finished_at) as before from supervisor.history"
        " where id > %s and id <= %s) h",
        [first, last],
    )[0]
    if found is None:
        raise RuntimeError("no job finished while it was looked")
    return float(found)
