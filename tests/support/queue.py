"""The queue's statements as a worker and a parent send them, for tests that talk to the database alone.

    Holder   one worker incarnation: a session, and what it claims, acknowledges and settles

The texts are the service's own (supervisor/db/sql); only the sending is written again here, on sync
connections, so that several can be driven step by step or from threads.
"""

import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import psycopg

from supervisor.db.jobs import EPOCH, SUSPECTS, Lane, Mark, numbers, quoted, row_places, texts
from supervisor.db.statements import statement
from tests.support.database import Database

FUTURE = "infinity"
DEFAULT = (Lane("default", 0), Lane("default", SUSPECTS))
Conn = psycopg.Connection[tuple[Any, ...]]


class Held(NamedTuple):
    """A claimed job."""

    id: int
    token: int
    attempt: int
    kind: str
    queue: str
    priority: int
    run_at: Any
    payload: str
    headers: str
    crashes: int
    suspect: bool
    tid: str = ""


@dataclass
class Claim:
    """One answer of work()."""

    jobs: list[Held]
    marks: dict[Lane, Mark]
    acked: int
    lost: list[int]
    short: bool
    next_s: float | None
    now: float
    unread: tuple[Lane, ...] = ()
    limited: frozenset[str] = frozenset()
    blocked: bool = False
    left: bool = False

    @property
    def ids(self) -> list[int]:
        return [job.id for job in self.jobs]


def new_session_id() -> int:
    return secrets.randbits(63) or 1


def work(
    conn: Conn,
    session: int,
    limit: int = 1,
    lanes: Sequence[Lane] = DEFAULT,
    marks: dict[Lane, Mark] | None = None,
    acks: Iterable[Held] = (),
    lookback_s: float = 0.0,
    keep: int = 1,
    hands: int | None = None,
    schema: str = "supervisor",
) -> Claim:
    """Send work() as a worker does; *hands*: for queues with a limit, else for all."""
    acks = sorted(acks, key=lambda job: job.id)
    from_marks = [(marks or {}).get(lane, Mark()) for lane in lanes]
    rows = conn.execute(
        statement("work", schema),
        {
            "session": session,
            "ids": numbers(job.id for job in acks),
            "claims": numbers(job.token for job in acks),
            "took": numbers(0.001 for _ in acks),
            "keep": keep,
            "queues": quoted(lane.queue for lane in lanes),
            "priorities": numbers(lane.priority for lane in lanes),
            "mark_at": quoted(mark.at for mark in from_marks),
            "mark_id": numbers(mark.id for mark in from_marks),
            "limit": limit,
            "lookback_s": lookback_s,
            "hands": limit if hands is None else hands,
            "tids": row_places([job.tid for job in acks]) if all(job.tid for job in acks) else None,
        },
    ).fetchall()
    control = json.loads(rows.pop()[4])
    marked = control["marks"]
    new_marks = {
        lanes[position - 1]: Mark(at, id_)
        for position, at, id_ in zip(marked["lanes"], marked["at"], marked["ids"], strict=True)
    }
    jobs = []
    for row in rows:
        lane = lanes[row[0] - 1]
        jobs.append(
            Held(
                row[1],
                row[2],
                row[6],
                row[3],
                lane.queue,
                lane.priority,
                datetime.fromtimestamp(row[12], UTC),
                row[4],
                row[5],
                row[8],
                row[9],
                row[13],
            )
        )
    return Claim(
        jobs,
        new_marks,
        control["acked"],
        control["lost"] or [],
        control["short"],
        control["next"],
        control["now"],
        tuple(lanes[ord_ - 1] for ord_ in control["unread"]),
        frozenset(control["limited"] or ()),
        control["blocked"],
        control["left"],
    )


def settle(
    conn: Conn,
    session: int,
    jobs: Sequence[Held],
    event: str | Sequence[str],
    *,
    error: str | None = None,
    reason: str | None = None,
    delay_s: float | None = None,
    base_s: float = 1.0,
    cap_s: float = 3600.0,
    keep: int = 1,
    limit_s: float = 3600.0,
    schema: str = "supervisor",
) -> dict[int, tuple[str, float | None]]:
    """Send settle(); status and seconds until due, by id. A missing id had lost its lease."""
    events = [event] * len(jobs) if isinstance(event, str) else list(event)
    rows = conn.execute(
        statement("settle", schema),
        {
            "session": session,
            "ids": numbers(job.id for job in jobs),
            "claims": numbers(job.token for job in jobs),
            "events": quoted(events),
            "errors": texts(error for _ in jobs),
            "reasons": texts(reason for _ in jobs),
            "delays_s": numbers(delay_s for _ in jobs),
            "bases_s": numbers(base_s for _ in jobs),
            "caps_s": numbers(cap_s for _ in jobs),
            "keep": keep,
            "limit_s": limit_s,
        },
    ).fetchall()
    return {row[0]: (row[1], row[2]) for row in rows}


def open_session(conn: Conn, session: int, lease_s: float = 3600.0, schema: str = "supervisor") -> None:
    conn.execute(statement("open_session", schema), {"session": session, "parent": 1, "name": "w", "lease_s": lease_s})


def close_session(conn: Conn, session: int) -> None:
    conn.execute(statement("close_session", "supervisor"), {"session": session})


def move_session(conn: Conn, old: int, new: int, held: Sequence[Held]) -> set[int]:
    rows = conn.execute(
        statement("move_session", "supervisor"),
        {
            "old": old, "new": new, "parent": 1, "name": "w", "lease_s": 3600.0,
            "ids": numbers(job.id for job in held), "claims": numbers(job.token for job in held),
        },
    )  # fmt: skip
    return {row[0] for row in rows.fetchall()}


def renew(conn: Conn, sessions: Sequence[int], lease_s: float = 3600.0) -> set[int]:
    rows = conn.execute(statement("renew", "supervisor"), {"ids": numbers(sessions), "lease_s": lease_s}).fetchall()
    return {row[0] for row in rows}


def expire(db: Database, *sessions: int) -> None:
    """As if nobody had renewed these sessions for an hour."""
    db.execute(
        "update supervisor.session set expires_at = clock_timestamp() - interval '1 hour' where id = any(%s)",
        [list(sessions)],
    )


def reap(conn: Conn) -> set[int]:
    return {row[0] for row in conn.execute(statement("reap", "supervisor")).fetchall()}


def sweep(
    conn: Conn,
    lane: Lane = DEFAULT[0],
    lo: Mark | None = None,
    hi: Mark | None = None,
    front: str | None = None,
    base_s: float = 1.0,
    cap_s: float = 3600.0,
    limit: int = 1000,
) -> dict[int, tuple[str, str]]:
    """Send sweep_lanes() for one lane; (what, status) by job id. Without a front, unclaimed rows stay."""
    lo, hi = lo or Mark(EPOCH, 0), hi or Mark(FUTURE, 0)
    rows = conn.execute(
        statement("sweep_lanes", "supervisor"),
        {
            "queues": quoted([lane.queue]), "priorities": numbers([lane.priority]),
            "lo_at": quoted([lo.at]), "lo_id": numbers([lo.id]), "hi_at": quoted([hi.at]), "hi_id": numbers([hi.id]),
            "fronts": "{NULL}" if front is None else quoted([front]),
            "base_s": base_s, "cap_s": cap_s, "limit": limit,
        },
    ).fetchall()  # fmt: skip
    return {row[1]: (row[2], row[3]) for row in rows}


@dataclass
class Holder:
    """One worker incarnation on a connection of its own."""

    db: Database
    lease_s: float = 3600.0
    conn: Conn = field(init=False)
    session: int = field(init=False)

    def __post_init__(self) -> None:
        self.conn = self.db.connect()
        self.session = new_session_id()
        open_session(self.conn, self.session, self.lease_s)

    def claim(self, limit: int = 1, **options: Any) -> Claim:
        return work(self.conn, self.session, limit, **options)

    def ack(self, *jobs: Held, keep: int = 1) -> Claim:
        return work(self.conn, self.session, 0, acks=jobs, keep=keep)

    def settle(self, jobs: Held | Sequence[Held], event: str, **options: Any) -> dict[int, tuple[str, float | None]]:
        return settle(self.conn, self.session, [jobs] if isinstance(jobs, Held) else jobs, event, **options)


def enqueue(conn: Conn, count: int = 1, **named: Any) -> list[int]:
    """Add *count* equal jobs by the public SQL function, with named arguments."""
    named.setdefault("kind", "k")
    arguments = ", ".join(f"{name} => %({name})s" for name in named)
    query = f"select id from supervisor.enqueue({arguments})".encode()
    return [row[0] for _ in range(count) for row in conn.execute(query, named).fetchall()]


def stored(db: Database, job_id: int) -> dict[str, Any]:
    """The job as the public view tells it; empty if there is none."""
    rows = db.rows("select to_jsonb(j) from supervisor.jobs j where id = %s", [job_id])
    assert len(rows) <= 1, f"job {job_id} is in {len(rows)} places"
    found: dict[str, Any] = rows[0][0] if rows else {}
    return found
