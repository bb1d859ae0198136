"""One typed function per statement of a supervisor's parent: lanes, sweeps, its own row, retention.

Elsewhere: sessions and settling (jobs.py); when and how often (parent/tender.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from psycopg import AsyncConnection
from psycopg.rows import tuple_row

from supervisor.db.jobs import Lane, Mark, numbers, quoted, texts
from supervisor.db.migrate import Installed
from supervisor.db.statements import statement

PARKED_AT: Final = "9999-12-31 00:00:00.000000+00"
"""Where jobs at gates are in their lanes, behind all others (parked_at in functions/046_gate.sql)."""


class LowWater(NamedTuple):
    """Where one lane's unclaimed rows begin, whether one is due, when the next is, what looking cost."""

    lane: Lane
    mark: Mark
    due: bool
    next_s: float | None
    cost_ms: float


class Swept(NamedTuple):
    """One job that a sweep touched; what is moved, released or crashed."""

    lane: Lane
    id: int
    what: str
    status: str


async def try_tend(conn: AsyncConnection, schema: str, *, idle_s: float = 10.0) -> bool:
    """Whether this transaction is the one that tends the queue; others skip. Never waits.

    The server ends the connection when it hears nothing for *idle_s* seconds before the transaction's end.
    """
    async with conn.cursor(row_factory=tuple_row) as cur:
        row = await (await cur.execute(statement("try_tend", schema), {"idle_ms": int(idle_s * 1000)})).fetchone()
        return bool(row and row[0])


async def cancels_of(
    conn: AsyncConnection, schema: str, runs: Sequence[tuple[int, int]]
) -> list[tuple[int, int, float | None]]:
    """Of *runs* (id, token) those that were cancelled, with the seconds until their workers may be killed for it."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        parameters = {"ids": numbers([run[0] for run in runs]), "claims": numbers([run[1] for run in runs])}
        await cur.execute(statement("cancels_of", schema), parameters)
        return [(row[0], row[1], row[2]) for row in await cur.fetchall()]


async def reap(conn: AsyncConnection, schema: str) -> list[tuple[int, str]]:
    """Close the sessions that nobody renewed in time; their ids and names."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        return [(row[0], row[1]) for row in await (await cur.execute(statement("reap", schema))).fetchall()]


async def discover(conn: AsyncConnection, schema: str) -> int:
    """Register lanes found in the job table; how many were new."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        row = await (await cur.execute(statement("discover", schema))).fetchone()
        return int(row[0]) if row else 0


async def lanes(conn: AsyncConnection, schema: str) -> dict[Lane, Mark]:
    """Every known lane with its published mark."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        rows = await (await cur.execute(statement("lanes", schema))).fetchall()
        return {Lane(row[0], row[1]): Mark(row[2], row[3]) for row in rows}


async def add_lanes(conn: AsyncConnection, schema: str, new: Sequence[Lane]) -> None:
    """Register *new* lanes; known ones are left alone."""
    await conn.execute(
        statement("add_lanes", schema),
        {"queues": quoted(lane.queue for lane in new), "priorities": numbers(lane.priority for lane in new)},
    )


async def low_water_of_all(
    conn: AsyncConnection, schema: str, more: Sequence[Lane], *, lookback_s: float
) -> list[LowWater]:
    """The low-water mark of every known lane, looked for from its published one, and of *more* lanes."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        await cur.execute(
            statement("low_water_of_all", schema),
            {
                "queues": quoted(lane.queue for lane in more),
                "priorities": numbers(lane.priority for lane in more),
                "lookback_s": lookback_s,
            },
        )
        return [
            LowWater(Lane(row[0], row[1]), Mark(row[2], row[3]), row[4], row[5], row[6]) for row in await cur.fetchall()
        ]


async def next_lapse(conn: AsyncConnection, schema: str, *, parent: int) -> float | None:
    """Seconds until the first lease of another supervisor than *parent* lapses unless renewed; None: there is none."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        row = await (await cur.execute(statement("next_lapse", schema), {"parent": parent})).fetchone()
        return None if row is None else row[0]


async def low_water(
    conn: AsyncConnection, schema: str, marks: Sequence[tuple[Lane, Mark]], *, lookback_s: float
) -> list[LowWater]:
    """The low-water mark of each lane, looked for from the mark given with it."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        await cur.execute(
            statement("low_water", schema),
            {
                "queues": quoted(lane.queue for lane, _ in marks),
                "priorities": numbers(lane.priority for lane, _ in marks),
                "mark_at": quoted(mark.at for _, mark in marks),
                "mark_id": numbers(mark.id for _, mark in marks),
                "lookback_s": lookback_s,
            },
        )
        return [
            LowWater(marks[row[0] - 1][0], Mark(row[1], row[2]), row[3], row[4], row[5]) for row in await cur.fetchall()
        ]


@dataclass(frozen=True, slots=True)
class Range:
    """A part of a lane to sweep: [lo, hi). Unclaimed rows move to *front*; None leaves them alone."""

    lane: Lane
    lo: Mark
    hi: Mark
    front: str | None


async def sweep(
    conn: AsyncConnection, schema: str, ranges: Sequence[Range], *, base_s: float, cap_s: float, limit: int = 1000
) -> list[Swept]:
    """Repair *ranges*, at most *limit* rows of each."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        await cur.execute(
            statement("sweep_lanes", schema),
            {
                "queues": quoted(item.lane.queue for item in ranges),
                "priorities": numbers(item.lane.priority for item in ranges),
                "lo_at": quoted(item.lo.at for item in ranges),
                "lo_id": numbers(item.lo.id for item in ranges),
                "hi_at": quoted(item.hi.at for item in ranges),
                "hi_id": numbers(item.hi.id for item in ranges),
                "fronts": "{" + ",".join("NULL" if item.front is None else f'"{item.front}"' for item in ranges) + "}",
                "base_s": base_s,
                "cap_s": cap_s,
                "limit": limit,
            },
        )
        return [Swept(ranges[row[0] - 1].lane, *row[1:]) for row in await cur.fetchall()]


async def publish_mark(conn: AsyncConnection, schema: str, lane: Lane, mark: Mark) -> None:
    """Raise *lane*'s published mark to *mark*; lowers it only when it lies ahead of the database's clock."""
    await conn.execute(
        statement("publish_mark", schema),
        {"queue": lane.queue, "priority": lane.priority, "mark_at": mark.at, "mark_id": mark.id},
    )


async def beat(
    conn: AsyncConnection,
    schema: str,
    *,
    parent: int,
    name: str,
    host: str,
    pid: int,
    version: str,
    state: str,
    detail: str,
    ttl_s: float,
    waiting: bool,
) -> None:
    """Say that this supervisor lives and whether it wants wake-ups; *detail* is JSON text."""
    await conn.execute(
        statement("parent_beat", schema),
        {
            "id": parent,
            "name": name,
            "host": host,
            "pid": pid,
            "version": version,
            "state": state,
            "detail": detail,
            "ttl_s": ttl_s,
            "waiting": waiting,
        },
    )


async def gone(conn: AsyncConnection, schema: str, *, parent: int) -> None:
    """This supervisor has stopped."""
    await conn.execute(statement("parent_gone", schema), {"id": parent})


async def say_doing(conn: AsyncConnection, schema: str, doing: Mapping[int, str]) -> None:
    """Note what workers run: JSON text by session. A session that is closed is left alone."""
    parameters = {"ids": numbers(doing), "doing": texts(doing.values())}
    await conn.execute(statement("say_doing", schema), parameters)


async def version(conn: AsyncConnection, schema: str) -> Installed:
    """What migrations have made of the schema; raises psycopg.errors.UndefinedTable when there is none."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        row = await (await cur.execute(statement("version", schema))).fetchone()
        return Installed(*row) if row else Installed(None)


async def make_partitions(conn: AsyncConnection, schema: str, *, days_ahead: int) -> int:
    """Make history's partitions for today and the days ahead; how many were made."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        row = await (await cur.execute(statement("make_partitions", schema), {"days_ahead": days_ahead})).fetchone()
        return int(row[0]) if row else 0


async def drop_partitions(conn: AsyncConnection, schema: str, *, keep_s: float) -> list[str]:
    """Drop the oldest of history's partitions that ended more than *keep_s* seconds ago; its name, or nothing."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        rows = await (await cur.execute(statement("drop_partitions", schema), {"keep_s": keep_s})).fetchall()
        return [row[0] for row in rows]


async def prune(
    conn: AsyncConnection, schema: str, *, keep_history_s: float, keep_dead_s: float, limit: int = 1000
) -> int:
    """Remove one batch of rows past their age from the helper tables; how many went."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        await cur.execute(
            statement("prune", schema),
            {"keep_history_s": keep_history_s, "keep_dead_s": keep_dead_s, "limit": limit},
        )
        row = await cur.fetchone()
        return int(row[0]) if row else 0


class Passed(NamedTuple):
    """One look at the gates: notes taken (-1: another supervisor is at it), jobs let in, seconds to the next note, and
    how long finding the notes took."""

    looked: int
    let_in: int
    next_s: float | None
    read_ms: float | None


async def pass_gates(conn: AsyncConnection, schema: str, *, since: float, most: int) -> Passed:
    """Let in jobs that waited for others, as the notes of since then (epoch seconds) ask, at most *most* of them."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        row = await (await cur.execute(statement("pass_gates", schema), {"since": since, "most": most})).fetchone()
        assert row is not None
        return Passed(*row)


async def now(conn: AsyncConnection, schema: str) -> float:
    """The database's clock, in seconds since 1970."""
    async with conn.cursor(row_factory=tuple_row) as cur:
        row = await (await cur.execute(statement("now", schema))).fetchone()
        assert row is not None
        return float(row[0])
