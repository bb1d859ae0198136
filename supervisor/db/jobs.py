"""One typed function per statement of a worker: claim, acknowledge, settle, and its session.

Each takes a connection, sends one statement and returns its answer; what zero rows mean is said in the
statement's file (sql/). Nothing here retries, logs or remembers.

Elsewhere: connections and errors (link.py); what a supervisor's parent sends (tend.py); enqueueing
(enqueue.py); what operators do (operate.py).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, TypeAlias

from psycopg import AsyncConnection
from psycopg.rows import tuple_row
from pydantic_core import from_json

from supervisor.db.house import HouseConnection, prepared
from supervisor.db.statements import statement
from supervisor.outcome import Outcome

EPOCH: Final = "1970-01-01 00:00:00.000000+00"


class Mark(NamedTuple):
    """A place in a lane: run_at as UTC text of fixed width, and the id. Marks compare as they sort."""

    at: str = EPOCH
    id: int = 0


Connection: TypeAlias = AsyncConnection
"""A connection, for layers that pass it on without importing the driver."""

_AT: Final = "%Y-%m-%d %H:%M:%S.%f+00"
_ZERO: Final = datetime(1970, 1, 1, tzinfo=UTC)


def mark_at(epoch_us: int) -> str:
    """The text of a mark at *epoch_us* microseconds since 1970."""
    return (_ZERO + timedelta(microseconds=epoch_us)).strftime(_AT)


def epoch_us(at: str) -> int:
    """The microseconds since 1970 of a mark's text."""
    when = datetime.strptime(at[:26], "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC)
    return (when - _ZERO) // timedelta(microseconds=1)


SUSPECTS: Final = 1000
"""Added to the priority of a suspect: a lane of its own, which ordinary claims do not read."""


class Lane(NamedTuple):
    """A (queue, priority) pair: one range of the lane index."""

    queue: str
    priority: int

    @property
    def suspects(self) -> bool:
        """Whether its jobs run alone."""
        return self.priority > SUSPECTS // 2


@dataclass(slots=True)
class ClaimedJob:
    """A job this worker holds, as its claim returned it; times in seconds since 1970: few handlers ask for more."""

    id: int
    token: int
    kind: str
    queue: str
    priority: int
    payload: str
    headers: str
    attempt: int
    max_attempts: int
    crashes: int
    suspect: bool
    timeout_s: float | None
    created_at: float
    run_at: float
    tid: str = ""  # where its row lies; empty: not known


class Ack(NamedTuple):
    """A finished run: job id, fencing token, seconds it ran, where its row lay when it was claimed."""

    id: int
    token: int
    took_s: float
    tid: str = ""


class Answer(NamedTuple):
    """What one round trip brought."""

    jobs: list[ClaimedJob]
    marks: dict[int, Mark]  # position in the asked lanes -> the lane's new mark
    acked: int
    lost: list[int]
    short: bool
    next_s: float | None
    now: float
    unread: frozenset[int] = frozenset()  # positions in the asked lanes of those not read to their end
    limited: frozenset[str] = frozenset()  # the queues asked for that have a limit
    blocked: bool = False  # jobs are due that wait for a place: look again soon
    left: bool = False  # jobs are due that have a place, and were left for want of hands


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of one run other than by success, and how its retry would back off."""

    id: int
    token: int
    outcome: Outcome
    base_s: float = 1.0
    cap_s: float = 3600.0


class Settled(NamedTuple):
    """What became of one settled job; due_in_s is None unless it is queued again."""

    id: int
    status: str
    due_in_s: float | None


def numbers(values: Iterable[float | None]) -> str:
    """An array literal; the driver's own list dumping costs more than the statement for long ones."""
    return "{" + ",".join(map(repr, values)).replace("None", "NULL") + "}"


def seconds(values: Iterable[float]) -> str:
    """An array literal of durations, to the microsecond: written out as they are, floats take ten times as long."""
    return "{" + ",".join([f"{int(value * 1e6)}e-6" for value in values]) + "}"


def texts(values: Iterable[str | None]) -> list[str | None]:
    """A text array parameter."""
    return list(values)


def quoted(values: Iterable[str]) -> str:
    """An array literal of texts that need quoting at most for backslash and double quote."""
    return "{" + ",".join('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values) + "}"


def row_places(tids: Sequence[str]) -> str:
    """An array literal of places of rows."""
    return '{"' + '","'.join(tids) + '"}' if tids else "{}"


async def work(
    conn: HouseConnection,
    schema: str,
    *,
    session: int,
    acks: Sequence[Ack] = (),
    keep: int,
    lanes: Sequence[Lane] = (),
    marks: Sequence[Mark] = (),
    limit: int = 0,
    lookback_s: float = 0.0,
    hands: int | None = None,
) -> Answer:
    """Acknowledge *acks* and claim up to *limit* due jobs of *lanes*, best lane first.

    Any number of workers may call this at once; each job goes to one of them. Claimed jobs come lane by
    lane, each in (run_at, id) order; their attempt and token are already counted up. Of several
    acks of one job only that of its latest run is sent: the others are stale. Of queues with a limit at
    most *hands* are claimed (None: *limit*).

    Raises:
        psycopg.Error QS001: the session is closed; nothing was acknowledged or claimed.
    """
    latest = {ack.id: ack for ack in sorted(acks)}.values()
    ids, tokens, took, tids = zip(*latest, strict=True) if acks else ((), (), (), ())
    rows = await conn.fetch(
        prepared("work", schema),
        {
            "session": session,
            "ids": numbers(ids),
            "claims": numbers(tokens),
            "took": seconds(took),
            "keep": keep,
            "queues": quoted(lane.queue for lane in lanes),
            "priorities": numbers(lane.priority for lane in lanes),
            "mark_at": quoted(mark.at for mark in marks),
            "mark_id": numbers(mark.id for mark in marks),
            "limit": limit,
            "lookback_s": lookback_s,
            "hands": limit if hands is None else hands,
            "tids": row_places(tids) if all(tids) else None,
        },
    )
    control = from_json(rows.pop()[4])
    claimed: list[ClaimedJob] = []
    position, queue, priority = 0, "", 0
    for row in rows:
        if row[0] != position:
            position = row[0]
            lane = lanes[position - 1]
            queue, priority = lane.queue, lane.priority - SUSPECTS * lane.suspects
        claimed.append(
            ClaimedJob(
                row[1], row[2], row[3], queue, priority, row[4], row[5], row[6], row[7], row[8], row[9], row[10],
                row[11], row[12], row[13],
            )
        )  # fmt: skip
    marked = control["marks"]
    new_marks = {
        position - 1: Mark(at, id_)
        for position, at, id_ in zip(marked["lanes"], marked["at"], marked["ids"], strict=True)
    }
    return Answer(
        claimed,
        new_marks,
        control["acked"],
        control["lost"] or [],
        control["short"],
        control["next"],
        control["now"],
        frozenset(position - 1 for position in control["unread"]),
        frozenset(control["limited"] or ()),
        control["blocked"],
        control["left"],
    )


async def finish_with_results(
    conn: AsyncConnection, schema: str, *, session: int, kept: Sequence[tuple[Ack, str, float]], keep: int
) -> set[int]:
    """Acknowledge runs and keep their results (JSON text, seconds to keep it); the ids of those that counted.

    Raises:
        psycopg.Error QS001: the session is closed; nothing was acknowledged.
    """
    kept = list({one[0].id: one for one in sorted(kept, key=lambda one: one[0])}.values())
    async with conn.cursor(row_factory=tuple_row) as cur:
        await cur.execute(statement("finish_with_results", schema), with_results(session, kept, keep))
        return {row[0] for row in await cur.fetchall()}


def with_results(session: int, kept: Sequence[tuple[Ack, str, float]], keep: int) -> dict[str, object]:
    """The parameters of finish_with_results."""
    return {
        "session": session,
        "ids": numbers([ack.id for ack, _, _ in kept]),
        "claims": numbers([ack.token for ack, _, _ in kept]),
        "took": numbers([ack.took_s for ack, _, _ in kept]),
        "keep": keep,
        "results": texts(str(value) for _, value, _ in kept),
        "for_s": numbers([kept_s for _, _, kept_s in kept]),
    }


async def say_progress(
    conn: AsyncConnection, schema: str, *, session: int, words: Sequence[tuple[int, int, float, str | None]]
) -> None:
    """Keep what runs (id, token, share, note) say of themselves; those that are not held any more are left alone."""
    await conn.execute(
        statement("say_progress", schema),
        {
            "session": session,
            "ids": numbers([word[0] for word in words]),
            "claims": numbers([word[1] for word in words]),
            "shares": numbers([word[2] for word in words]),
            "notes": texts(word[3] for word in words),
        },
    )


async def settle(
    conn: AsyncConnection,
    schema: str,
    *,
    session: int,
    settlements: Sequence[Settlement],
    keep: int,
    unknown_limit_s: float,
) -> list[Settled]:
    """End runs other than by success, or release them. A job missing from the answer had lost its lease."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        await cur.execute(
            statement("settle", schema),
            {
                "session": session,
                "ids": numbers(item.id for item in settlements),
                "claims": numbers(item.token for item in settlements),
                "events": quoted(item.outcome.event for item in settlements),
                "errors": texts(item.outcome.error for item in settlements),
                "reasons": texts(item.outcome.reason for item in settlements),
                "delays_s": numbers(item.outcome.delay for item in settlements),
                "bases_s": numbers(item.base_s for item in settlements),
                "caps_s": numbers(item.cap_s for item in settlements),
                "keep": keep,
                "limit_s": unknown_limit_s,
            },
        )
        return [Settled(*row) for row in await cur.fetchall()]


async def put_back(
    conn: AsyncConnection,
    schema: str,
    *,
    lanes: Sequence[Lane],
    marks: Sequence[Mark],
    known: Iterable[str],
    due_s: float,
    limit_s: float,
    limit: int,
) -> tuple[int, bool]:
    """Put off due jobs of kinds not *known*, unclaimed, looking at *limit* rows at most.

    Those that have been due for less than *due_s* seconds are left for workers that know them; those unknown for
    longer than *limit_s* for a claim.

    Returns:
        How many were put off, and whether there may be more.
    """
    async with conn.cursor(row_factory=tuple_row) as cur:
        await cur.execute(
            statement("put_back", schema),
            {
                "queues": quoted(lane.queue for lane in lanes),
                "priorities": numbers(lane.priority for lane in lanes),
                "mark_at": quoted(mark.at for mark in marks),
                "mark_id": numbers(mark.id for mark in marks),
                "known": quoted(known),
                "due_s": due_s,
                "limit_s": limit_s,
                "limit": limit,
            },
        )
        [(moved, more)] = await cur.fetchall()
        return moved, more


async def open_session(
    conn: AsyncConnection, schema: str, *, session: int, parent: int, name: str, lease_s: float
) -> None:
    """Start *session*, live for *lease_s* seconds unless renewed."""
    await conn.execute(
        statement("open_session", schema), {"session": session, "parent": parent, "name": name, "lease_s": lease_s}
    )


async def close_session(conn: AsyncConnection, schema: str, *, session: int) -> None:
    """End *session*: what it still holds goes back untouched at the next sweep."""
    await conn.execute(statement("close_session", schema), {"session": session})


async def move_session(
    conn: AsyncConnection,
    schema: str,
    *,
    old: int,
    new: int,
    parent: int,
    name: str,
    lease_s: float,
    held: Sequence[tuple[int, int]],
) -> set[int]:
    """Carry the (id, token) pairs of *held* from session *old* to *new*; the ids that came along."""
    held = list(dict(sorted(held)).items())
    async with conn.cursor(row_factory=tuple_row) as cur:
        await cur.execute(
            statement("move_session", schema),
            {
                "old": old,
                "new": new,
                "parent": parent,
                "name": name,
                "lease_s": lease_s,
                "ids": numbers(job_id for job_id, _ in held),
                "claims": numbers(token for _, token in held),
            },
        )
        return {row[0] for row in await cur.fetchall()}


async def renew(conn: AsyncConnection, schema: str, *, sessions: Sequence[int], lease_s: float) -> set[int]:
    """Prolong *sessions* by *lease_s* seconds from now; those not in the answer are closed for good."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        await cur.execute(statement("renew", schema), {"ids": numbers(sessions), "lease_s": lease_s})
        return {row[0] for row in await cur.fetchall()}


async def overtaken(conn: AsyncConnection, schema: str, runs: Sequence[tuple[int, int, bool]]) -> set[int]:
    """Of *runs* (id, token, whether its result ends the job) whose answers were lost: those surely not stored."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        await cur.execute(
            statement("overtaken", schema),
            {
                "ids": numbers(run[0] for run in runs),
                "claims": numbers(run[1] for run in runs),
                "gone": [run[2] for run in runs],
            },
        )
        return {row[0] for row in await cur.fetchall()}
