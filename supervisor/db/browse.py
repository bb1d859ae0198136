"""Looking through jobs, workers and counts, at a cost that does not depend on how many there are.

    page       jobs that fit a search, a page at a time in either direction
    running    the jobs that are claimed now
    workers, named, holder      who runs what
    lines      how many jobs ended how, minute by minute

A filter that fits few rows would read them all. So a page is made of small looks, each at a bounded range
of ids, until it is full, the end is reached, or its patience is over; then it says how far it looked, and the
next page goes on from there.

Always true: no statement counts or skips rows; each has a limit on what it looks at, not only on what it
returns.

Elsewhere: connections (operate.py, desk.py); depths (overview.py); orders (operate.py).
"""

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from psycopg import Connection
from psycopg.rows import tuple_row

from supervisor.db.operate import Filter
from supervisor.db.statements import statement

_FIRST_LOOK: Final = 1_000
_LARGEST_LOOK: Final = 16_000
_LARGE_TEXT_LOOK: Final = 4_000
_GROWTH: Final = 4
_FRONT_ROWS: Final = 20_000
_MOST_WORKERS: Final = 2_000


@dataclass(frozen=True, slots=True)
class JobRow:
    """A line of a list of jobs."""

    id: int
    status: str
    queue: str
    kind: str
    priority: int
    attempts: int
    max_attempts: int
    crashes: int
    run_at: datetime
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    reason: str | None
    last_error: str | None
    waits_for: str | None = None
    """Of a queued one: parents, order, concurrency, rate; None: it may run when it is due."""


@dataclass(frozen=True, slots=True)
class Search:
    """Which jobs.

    Attributes:
        holds: JSON text; the payload contains it (`@>`).
        says: Text that stands in the payload, in JSON or in a string of it, whatever its case.
    """

    wanted: Filter
    holds: str | None = None
    says: str | None = None

    @property
    def narrow(self) -> bool:
        """Whether few of the jobs that are looked at may fit."""
        statuses = set(self.wanted.statuses)
        rare = statuses.isdisjoint(
            {"queued", "dead", "done"}
        )  # beside queued ones few run; beside dead, few are cancelled
        others = (self.wanted.queue, self.wanted.kind, self.holds, self.says, self.wanted.scheduled)
        return rare or any(part is not None for part in others)

    def parameters(self) -> dict[str, object]:
        statuses = set(self.wanted.statuses)
        says = self.says.lower() if self.says is not None else None
        written = json.dumps(self.says, ensure_ascii=False)[1:-1].lower() if self.says is not None else None
        return {
            "living": bool(statuses & {"queued", "running"}),
            "buried": bool(statuses & {"dead", "cancelled"}),
            **{status: status in statuses for status in ("queued", "running", "dead", "cancelled", "done")},
            "scheduled": self.wanted.scheduled,
            "queue": self.wanted.queue,
            "kind": self.wanted.kind,
            "holds": self.holds,
            "says": says,
            "written": written if written != says else None,
        }


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of jobs, latest first.

    Attributes:
        older: Ids below it follow; None: there are none.
        newer: Ids above it come before; None: there are none.
        looked: Jobs that were looked at for this page.
        stopped: Patience was over before the page was full.
    """

    rows: list[JobRow]
    older: int | None
    newer: int | None
    looked: int
    stopped: bool


def page(
    conn: Connection,
    schema: str,
    search: Search,
    *,
    before: int | None = None,
    after: int | None = None,
    limit: int,
    patience_s: float | None = None,
) -> JobPage:
    """The jobs with ids below *before* (None: the latest), or those next above *after*.

    Args:
        limit: Jobs on the page.
        patience_s: After so long no further look is begun; None: look to the end.
    """
    if after is not None:
        found = _look(conn, schema, "list_jobs_up", search, after, limit, patience_s)
        if found.edge is not None or len(found.rows) == limit:
            rows = found.rows[::-1]
            return JobPage(rows, rows[-1].id if rows else after + 1, found.edge, found.looked, found.stopped)
        before = None  # nothing is above: this is the first page, and a full one is better
    found = _look(conn, schema, "list_jobs", search, before, limit, patience_s)
    newer = None if before is None else found.rows[0].id if found.rows else before - 1
    return JobPage(found.rows, found.edge, newer, found.looked, found.stopped)


class _Found(NamedTuple):
    rows: list[JobRow]  # in the direction of the look
    edge: int | None  # where to go on
    looked: int
    stopped: bool


def _look(
    conn: Connection, schema: str, name: str, search: Search, start: int | None, limit: int, patience_s: float | None
) -> _Found:
    until = None if patience_s is None else time.monotonic() + patience_s
    largest = _LARGEST_LOOK if search.says is None else _LARGE_TEXT_LOOK
    window = _FIRST_LOOK if search.narrow else limit + 1
    rows: list[JobRow] = []
    edge, looked = start, 0
    while True:
        parameters = {
            **search.parameters(),
            "before": edge,
            "after": edge,
            "window": window,
            "limit": limit + 1 - len(rows),
        }
        with conn.cursor(row_factory=tuple_row) as cur:
            answers = cur.execute(statement(name, schema), parameters).fetchall()
        looked += answers[0][1]
        rows += [JobRow(*answer[2:]) for answer in answers if answer[2] is not None]
        edge = answers[0][0]
        if len(rows) > limit:
            del rows[limit:]
            return _Found(rows, rows[-1].id, looked, False)
        if edge is None:
            return _Found(rows, None, looked, False)
        if until is not None and time.monotonic() >= until:
            return _Found(rows, edge, looked, len(rows) < limit)
        window = min(largest, max(_FIRST_LOOK, window * _GROWTH))


class Running(NamedTuple):
    """The jobs that are claimed now; `looked` is how many rows were looked at to find them."""

    rows: list[JobRow]
    looked: int


def running(conn: Connection, schema: str, search: Search, *, limit: int) -> Running:
    """The jobs that are claimed now, the latest start first; at most *limit*.

    A job that no worker has told of yet, and that lies far behind its lane's front, is not found.
    """
    lanes = max(1, lane_count(conn, schema))
    parameters = {
        **{key: search.parameters()[key] for key in ("queue", "kind", "holds", "says", "written")},
        "window": max(50, min(1000, _FRONT_ROWS // lanes)),
        "limit": limit,
    }
    with conn.cursor(row_factory=tuple_row) as cur:
        answers = cur.execute(statement("running_jobs", schema), parameters).fetchall()
    return Running([JobRow(*answer[1:]) for answer in answers if answer[1] is not None], answers[0][0])


def lane_count(conn: Connection, schema: str) -> int:
    """How many lanes are in use."""
    with conn.cursor(row_factory=tuple_row) as cur:
        return len(cur.execute(statement("lanes", schema)).fetchall())


class WorkerRow(NamedTuple):
    """A worker with an open session, and what it says it runs (`doing`, as its supervisor wrote it)."""

    parent: int | None
    name: str
    opened_at: datetime
    lease_left_s: float
    seen_ago_s: float | None
    doing: Any


def workers(conn: Connection, schema: str) -> list[WorkerRow]:
    """The workers whose sessions are open."""
    with conn.cursor(row_factory=tuple_row) as cur:
        rows = cur.execute(statement("workers", schema), {"limit": _MOST_WORKERS}).fetchall()
    return [WorkerRow(*row) for row in rows]


class Named(NamedTuple):
    """What a living job is."""

    id: int
    kind: str
    queue: str
    attempts: int
    max_attempts: int
    crashes: int


def named(conn: Connection, schema: str, ids: Sequence[int]) -> dict[int, Named]:
    """The jobs of *ids* that are queued or running, by id."""
    with conn.cursor(row_factory=tuple_row) as cur:
        rows = cur.execute(statement("named_jobs", schema), {"ids": list(ids)}).fetchall()
    return {row[0]: Named(*row) for row in rows}


class Holder(NamedTuple):
    """Who runs a job; `doing` is what its worker says of it."""

    worker: str
    lease_until: datetime
    started_at: datetime | None
    doing: Any


def holder(conn: Connection, schema: str, job_id: int) -> Holder | None:
    """Who runs a job; None when nobody does."""
    with conn.cursor(row_factory=tuple_row) as cur:
        row = cur.execute(statement("holder", schema), {"id": job_id}).fetchone()
    return Holder(*row) if row else None


class Line(NamedTuple):
    """How many jobs of one queue ended in one way in one minute; minute 0 is the oldest."""

    queue: str
    event: str
    minute: int
    jobs: int


def lines(conn: Connection, schema: str, *, minutes: int, queues: Iterable[str] | None = None) -> list[Line]:
    """The counts of the last *minutes*, of each of *queues*, or of all queues together under the name ''."""
    parameters = {"minutes": minutes, "queues": None if queues is None else list(queues)}
    with conn.cursor(row_factory=tuple_row) as cur:
        return [Line(*row) for row in cur.execute(statement("tally_lines", schema), parameters).fetchall()]


def look(conn: Connection, schema: str, *, seconds: float) -> None:
    """Tell every supervisor that somebody looks for so many *seconds*: they write at once what workers run."""
    conn.execute(statement("look", schema), {"seconds": seconds})


def as_contained(text: str) -> tuple[str | None, str | None]:
    """A search text as (holds, says): a JSON object or array is contained, anything else stands in the payload.

    What PostgreSQL's jsonb cannot hold (NUL, lone surrogates, huge numbers) is taken for text.
    """
    try:
        value = json.loads(text)
        sound = json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, RecursionError):
        return None, text
    if not isinstance(value, dict | list) or b"\\u0000" in sound:
        return None, text
    return text, None
