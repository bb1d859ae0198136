"""What the database says of itself and of the queue: depths, dead rows, bloat, who holds vacuum back.

    depths         jobs waiting, scheduled, running and dead by queue       each bounded
    table_health   sizes, dead rows, bloat, vacuum; snapshots, slots        statistics and catalogs only

Asked by the parent's timer for /metrics, by the doctor and by the dashboard.

Always true: nothing here reads more rows than it is told to, so ten million jobs cost it nothing; no answer
holds a query's text or a job's data. Sizes and bloat are estimates from the server's statistics: good for
"this grows", not for accounting.

Elsewhere: depths as people see them, with exact wording of "at least" (overview.py); connections (link.py).
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from psycopg import AsyncConnection, errors
from psycopg.rows import tuple_row

from supervisor.db.statements import statement

MOST_COUNTED: Final = 10_000
"""The most jobs counted per lane (queue and priority) and kind of waiting."""
LEAST_COUNTED: Final = 100
MOST_COUNTED_IN_ALL: Final = 200_000
"""With many lanes each is counted less far, so that all of them together cost no more than this."""
MOST_HOLDERS: Final = 20
OURS: Final = "pg-supervisor"
_PLANS: Final = (
    "select set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), "
    "set_config('enable_sort', 'off', true), set_config('jit', 'off', true)"
)
_PATIENCE: Final = ", set_config('statement_timeout', %s, true)"


class HolderKind(StrEnum):
    """What keeps dead rows from being removed."""

    SESSION = "session"  # a transaction or a long query of a client
    STANDBY = "standby"  # a replica with hot_standby_feedback
    PREPARED = "prepared"  # a prepared transaction that nobody has ended
    SLOT = "slot"  # a replication slot's xmin


@dataclass(frozen=True, slots=True)
class Holder:
    """Somebody whose snapshot holds back vacuum, in this database.

    Attributes:
        name: The session's application name; of a prepared transaction or a slot its own name.
        age_s: Seconds since its transaction began; None where that is not known.
        xids: Transactions begun since.
    """

    kind: HolderKind
    name: str
    pid: int | None
    user: str | None
    state: str | None
    began: datetime | None
    age_s: float | None
    xids: int | None

    @property
    def owner(self) -> str:
        """One of five words: "supervisor" for a session of this service, else the kind."""
        return "supervisor" if self.kind is HolderKind.SESSION and self.name.startswith(OURS) else str(self.kind)


@dataclass(frozen=True, slots=True)
class Table:
    """One table; "history" stands for all its partitions.

    Attributes:
        rows, dead_rows: As the statistics have them.
        bytes: The heap. total_bytes: with indexes and TOAST.
        bloat_bytes: Of the heap, beyond what its rows need; None where nothing is known (never analyzed).
        vacuumed_at, analyzed_at: By hand or automatic; None: never since the statistics began.
        xid_age: Transactions since its oldest row that is not frozen.
    """

    name: str
    rows: int
    dead_rows: int
    bytes: int
    total_bytes: int
    bloat_bytes: int | None
    vacuumed_at: datetime | None
    analyzed_at: datetime | None
    xid_age: int


@dataclass(frozen=True, slots=True)
class Index:
    """One index; bloat_bytes as for tables. Not *valid*: a concurrent build failed and left it behind, or works on it.

    Attributes:
        gain_bytes: What a rebuild would bring now; None where that is not known.
    """

    table: str
    name: str
    bytes: int
    bloat_bytes: int | None
    valid: bool
    gain_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """One replication slot of the server; retained_bytes is the log it keeps."""

    name: str
    type: str
    database: str | None
    active: bool
    retained_bytes: int | None
    wal_status: str | None
    xids: int | None


@dataclass(frozen=True, slots=True)
class TableHealth:
    """All of it.

    Attributes:
        holders: Who holds back vacuum, the one that holds back most first.
        notification_queue: The share of the server's notification queue in use, 0 to 1. At 1 commits that
            notify fail, in every database of the server.
        xid_age, xid_limit: Of the database, and the age at which vacuum for wrap-around begins.
        server_now: The server's clock, seconds since 1970.
    """

    tables: tuple[Table, ...]
    indexes: tuple[Index, ...]
    holders: tuple[Holder, ...]
    slots: tuple[Slot, ...]
    notification_queue: float
    connections: int
    max_connections: int
    autovacuum: bool
    xid_age: int
    xid_limit: int
    server_now: float

    def table(self, name: str) -> Table | None:
        """The table of that name."""
        return next((table for table in self.tables if table.name == name), None)

    @property
    def oldest(self) -> Holder | None:
        """Whoever has held back longest, of those whose age is known."""
        return max(
            (one for one in self.holders if one.age_s is not None), key=lambda one: one.age_s or 0.0, default=None
        )


@dataclass(slots=True)
class Depth:
    """The jobs of one queue.

    Attributes:
        due, scheduled, dead: Counted up to a limit. waiting: at a gate; it and running are None where counting took too
            long.
        oldest_due_s: How long the first due job has waited; oldest_running_s: since the first start.
    """

    queue: str
    due: int = 0
    scheduled: int = 0
    waiting: int | None = 0
    running: int | None = 0
    dead: int = 0
    oldest_due_s: float | None = None
    oldest_running_s: float | None = None


@dataclass(frozen=True, slots=True)
class Depths:
    """Every queue in use; *limit* is where counting stopped, per lane and kind of waiting."""

    queues: tuple[Depth, ...] = ()
    limit: int = MOST_COUNTED
    lanes: int = 0


@dataclass(slots=True)
class _Found:
    by_queue: dict[str, Depth] = field(default_factory=dict)

    def __getitem__(self, queue: str) -> Depth:
        return self.by_queue.setdefault(queue, Depth(queue))


async def table_health(conn: AsyncConnection, schema: str, *, holders: int = MOST_HOLDERS) -> TableHealth:
    """The state of the queue's tables and of what keeps them from being vacuumed.

    *conn* must be in autocommit mode, or its own snapshot is among the oldest. *holders*: the most of them.

    Raises:
        psycopg.Error: As the server said; a table that is locked exclusively makes it wait.
    """
    [server] = await _rows(conn, "health_server", schema)
    return TableHealth(
        tables=tuple(Table(*row) for row in await _rows(conn, "health_tables", schema)),
        indexes=await indexes(conn, schema),
        holders=tuple(
            Holder(HolderKind(kind), name or "", *rest)
            for kind, name, *rest in await _rows(conn, "health_horizon", schema, limit=holders)
        ),
        slots=tuple(Slot(*row) for row in await _rows(conn, "health_slots", schema)),
        notification_queue=server[0],
        connections=server[1],
        max_connections=server[2],
        autovacuum=server[3],
        xid_age=server[4],
        xid_limit=server[5],
        server_now=server[6],
    )


async def indexes(conn: AsyncConnection, schema: str) -> tuple[Index, ...]:
    """The indexes of the queue's tables, the history's excepted."""
    return tuple(Index(*row) for row in await _rows(conn, "health_indexes", schema))


async def depths(conn: AsyncConnection, schema: str, *, running_patience_s: float = 1.0) -> Depths:
    """How many jobs of each queue wait, run and are dead, every count bounded.

    Lanes come from the table that the parents keep. Counting what runs, and what waits at gates, is given up after
    *running_patience_s*: under a pinned horizon it may have to walk over many dead rows.
    """
    found = _Found()
    async with conn.transaction():
        await conn.execute(_PLANS)
        [[lanes]] = await _rows(conn, "health_lanes", schema)
        limit = max(LEAST_COUNTED, min(MOST_COUNTED, MOST_COUNTED_IN_ALL // max(1, lanes)))
        for queue, _, due, scheduled, waited in await _rows(conn, "lane_depths", schema, limit=limit):
            depth = found[queue]
            depth.due += due
            depth.scheduled += scheduled
            if waited is not None:
                depth.oldest_due_s = max(waited, depth.oldest_due_s or 0.0)
    running: list[Any] | None = None
    waiting: list[Any] | None = None
    with suppress(errors.QueryCanceled):
        async with conn.transaction():
            await conn.execute(_PLANS + _PATIENCE, (f"{max(1, int(running_patience_s * 1000))}ms",))
            running = list(await _rows(conn, "health_running", schema, limit=limit))
            waiting = list(await _rows(conn, "waiting_depths", schema, limit=limit))
    for queue, count, since in running or ():
        found[queue].running, found[queue].oldest_running_s = count, since
    parked: dict[str, int] = {}
    for queue, count in waiting or ():
        parked[queue] = parked.get(queue, 0) + count
    for queue in parked:
        found[queue].waiting = parked[queue]
    for depth in found.by_queue.values():
        depth.running = depth.running if running is not None else None
        depth.waiting = depth.waiting if waiting is not None else None
    for queue, count in await _rows(conn, "dead_depths", schema, limit=MOST_COUNTED):
        found[queue].dead = count
    return Depths(tuple(found.by_queue[queue] for queue in sorted(found.by_queue)), limit, lanes)


async def _rows(conn: AsyncConnection, name: str, schema: str, **params: Any) -> Iterable[Any]:
    async with conn.cursor(row_factory=tuple_row) as cur:
        return await (await cur.execute(statement(name, schema), params or None)).fetchall()
