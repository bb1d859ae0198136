"""Facts for the doctor: each one statement, bounded in rows and in time, in a transaction of its own.

    doctor/ --asks--> here --> sql/doctor_*.sql        what the server and the schema are like
                           --> health.py               sizes, dead rows, snapshots, slots

Always true: a question that fails leaves the connection fit for the next one. No statement reads a table
beyond its limit or waits for a lock longer than LOCK_WAIT_MS, so a queue of ten million jobs costs no more
than a small one. No answer holds a query's text or a job's data.

Elsewhere: what is right and what to do (supervisor/doctor); who may ask (roles.py).
"""

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import date
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.rows import tuple_row

from supervisor.db import health
from supervisor.db.events import MOST_PER_PART, OutboxState
from supervisor.db.link import answered, connect, first_line, service_conninfo
from supervisor.db.migrate import Installed
from supervisor.db.schedules import Schedule
from supervisor.db.statements import channel, statement
from supervisor.errors import DatabaseUnavailable

LOCK_WAIT_MS: Final = 1000
HEAR_S: Final = 3.0
_CLOCK_TRIES: Final = 5
_LEAST_SAMPLE: Final = 20
_MOST_SAMPLED: Final = 200_000
"""Rows of all lanes together, as far as the least sample allows."""
_BEGIN: Final = (
    "select set_config('statement_timeout', %s, true), set_config('lock_timeout', %s, true), "
    "set_config('enable_seqscan', %s, true), set_config('enable_bitmapscan', %s, true), "
    "set_config('enable_sort', %s, true), set_config('jit', 'off', true)"
)
_SETTINGS: Final = (
    "default_transaction_isolation", "default_transaction_read_only", "statement_timeout",
    "idle_in_transaction_session_timeout", "idle_session_timeout", "transaction_timeout", "synchronous_commit",
    "fsync", "full_page_writes", "track_counts", "autovacuum",
)  # fmt: skip


class ServerFacts(NamedTuple):
    """What doctor_server.sql returns."""

    version: int
    standby: bool
    database: str
    role: str
    superuser: bool
    sees_sessions: bool
    max_connections: int
    reserved: int
    role_limit: int | None
    database_limit: int | None
    settings: dict[str, str]
    encrypted: bool
    remote: bool

    def setting_s(self, name: str) -> float:
        """A length of time among the settings, in seconds; 0 is none, or not known to this server."""
        return int(self.settings.get(name) or 0) / 1000


class Lack(NamedTuple):
    """A right that the role does not have."""

    what: str
    name: str
    right: str


class IndexFacts(NamedTuple):
    """An index; *claimed*: it depends on a column that a claim changes. *building*: one of its table is built now."""

    table: str
    name: str
    valid: bool
    claimed: bool
    building: bool


class HistoryFacts(NamedTuple):
    """Days from today on without a partition, and rows in the default one."""

    missing: list[date]
    strays: int


class PresenceFacts(NamedTuple):
    """Living supervisors with some names, wishes for wake-ups of dead ones, sessions that nobody has reaped."""

    living: int
    names: list[str]
    wishes: int
    late_sessions: int


class QueueFacts(NamedTuple):
    """A queue that is paused, or whose limit is not counted yet: for how many seconds; None: it is not."""

    name: str
    paused_by: str | None
    paused_s: float | None
    max_running: int | None
    uncounted_s: float | None


class HeldKey(NamedTuple):
    """An ordering key that a dead job holds, and how many wait behind it."""

    job_id: int
    key: str
    behind: int


class DeadParent(NamedTuple):
    """A job that waits for one that is dead or cancelled."""

    parent: int
    status: str
    child: int


class Skew(NamedTuple):
    """The server's clock minus this host's, in seconds, true to within *bound_s*."""

    seconds: float
    bound_s: float


class Asker:
    """One connection, asked question after question.

    Args:
        patience_s: for one statement; then it is cancelled and the question fails with 57014.
    """

    def __init__(self, conn: AsyncConnection, schema: str, *, patience_s: float) -> None:
        self._conn = conn
        self._schema = schema
        self._patience = str(int(patience_s * 1000))

    async def pooled(self) -> bool:
        """Whether a pooler stands in between: the session that answers is not the one that was told."""
        [[pid]] = await self._rows("doctor_pid")
        return bool(pid != self._conn.info.backend_pid)

    async def server(self) -> ServerFacts:
        """What the server is, and what this role's sessions begin with."""
        [row] = await self._rows("doctor_server", names=list(_SETTINGS))
        return ServerFacts(*row)

    async def installed(self) -> Installed:
        """What migrations have made; a schema that is not there is Installed(None)."""
        try:
            rows = await self._rows("version")
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedColumn):
            return Installed(None)
        return Installed(*rows[0]) if rows else Installed(None)

    async def lacks(self, rights: Sequence[tuple[str, str]], functions: Sequence[str]) -> list[Lack]:
        """Of (table, right) and *functions* what this role may not."""
        rows = await self._rows(
            "doctor_rights",
            tables=[table for table, _ in rights],
            rights=[right for _, right in rights],
            functions=list(functions),
        )
        return [Lack(*row) for row in rows]

    async def outbox(self) -> OutboxState:
        """How the outbox is doing."""
        [row] = await self._rows("outbox_state", most=MOST_PER_PART)
        return OutboxState(*row)

    async def schedules(self) -> list[Schedule]:
        """Every cron entry."""
        return [Schedule(*row) for row in await self._rows("schedules")]

    async def role_prefix(self) -> str | None:
        """How the names of the roles begin that `migrate --roles` has set up; None if it has not."""
        [[prefix]] = await self._rows("doctor_prefix")
        return None if prefix is None else str(prefix)

    async def options(self) -> dict[str, dict[str, str]]:
        """The storage parameters of each table."""
        return {
            table: dict(option.split("=", 1) for option in options)
            for table, options in await self._rows("doctor_options")
        }

    async def indexes(self) -> list[IndexFacts]:
        """The indexes there are."""
        return [IndexFacts(*row) for row in await self._rows("doctor_indexes")]

    async def history(self, *, days: int, limit: int) -> HistoryFacts:
        """The history's days ahead, and what lies in none."""
        [row] = await self._rows("doctor_history", days=days, limit=limit)
        return HistoryFacts(*row)

    async def presence(self, *, late_s: float) -> PresenceFacts:
        """Who is there, and what those who are gone have left."""
        [row] = await self._rows("doctor_presence", late_s=late_s)
        return PresenceFacts(*row)

    async def stray_leases(self, *, late_s: float, limit: int) -> tuple[int, list[int]]:
        """Jobs that no living session holds though they are leased: how many, some ids."""
        limit = await self._per_lane(limit)
        [[count, ids]] = await self._rows("doctor_leases", plans=True, late_s=late_s, limit=limit)
        return count, ids

    async def due(self) -> dict[str, float]:
        """Seconds that each queue's first due job has waited."""
        return dict(await self._rows("doctor_due", plans=True))

    async def kinds(self, *, limit: int) -> list[tuple[str, int, int]]:
        """Kinds that wait, of a sample: kind, how many, how many were put back as unknown."""
        rows = await self._rows("doctor_kinds", plans=True, limit=await self._per_lane(limit))
        return [(row[0], row[1], row[2]) for row in rows]

    async def queues(self) -> list[QueueFacts]:
        """Queues that are paused or not counted."""
        return [QueueFacts(*row) for row in await self._rows("doctor_queues")]

    async def held_keys(self, *, limit: int) -> list[HeldKey]:
        """Ordering keys that dead jobs hold, those with most behind them first; of *limit* keys in use."""
        rows = await self._rows("doctor_keys", plans=True, limit=limit, some=_LEAST_SAMPLE * 50)
        return [HeldKey(*row) for row in rows]

    async def dead_parents(self, *, limit: int) -> list[DeadParent]:
        """Jobs that wait for dead ones to be retried; of *limit* links."""
        return [DeadParent(*row) for row in await self._rows("doctor_parents", plans=True, limit=limit)]

    async def odd_gates(self, *, limit: int) -> dict[str, list[int]]:
        """Ids of jobs whose keys have outlived them (gone), and of those that nobody will let in (stuck)."""
        found: dict[str, list[int]] = {"gone": [], "stuck": []}
        for what, job_id in await self._rows("doctor_gated", plans=True, limit=await self._per_lane(limit)):
            found[what].append(job_id)
        return found

    async def ids(self) -> list[tuple[str, float | None, str, bool]]:
        """Each sequence: name, share given out, type, whether it begins anew."""
        return [(row[0], row[1], row[2], row[3]) for row in await self._rows("doctor_ids")]

    async def health(self) -> health.TableHealth:
        """Sizes, dead rows, snapshots, slots."""
        async with self._asking():
            return await health.table_health(self._conn, self._schema)

    async def skew(self) -> Skew:
        """The server's clock against this host's: the best of some looks."""
        best = Skew(0.0, float("inf"))
        for _ in range(_CLOCK_TRIES):
            async with self._asking(), self._conn.cursor(row_factory=tuple_row) as cur:
                before, began = time.time(), time.monotonic()
                row = await (await cur.execute(statement("now", self._schema))).fetchone()
                took = time.monotonic() - began
            if row is not None and took / 2 < best.bound_s:
                best = Skew(float(row[0]) - (before + took / 2), took / 2)
        return best

    async def _per_lane(self, limit: int) -> int:
        """*limit*, or less where there are many lanes."""
        [[lanes]] = await self._rows("health_lanes")
        return max(_LEAST_SAMPLE, min(limit, _MOST_SAMPLED // max(1, int(lanes))))

    @asynccontextmanager
    async def _asking(self, *, plans: bool = False) -> AsyncIterator[None]:
        off = "off" if plans else "on"
        async with self._conn.transaction():
            # Nothing is left prepared: behind a pooler it would be another session's.
            await self._conn.execute(_BEGIN, (self._patience, str(LOCK_WAIT_MS), off, off, off), prepare=False)
            yield

    async def _rows(self, name: str, *, plans: bool = False, **params: Any) -> list[Any]:
        async with self._asking(plans=plans), self._conn.cursor(row_factory=tuple_row) as cur:
            await cur.execute(statement(name, self._schema), params or None, prepare=False)
            return await cur.fetchall()


@asynccontextmanager
async def asking(
    conninfo: str, *, name: str, patience_s: float, connect_timeout_s: float
) -> AsyncIterator[AsyncConnection]:
    """An autocommit connection to ask on, whatever server there is: also a standby.

    Raises:
        DatabaseUnavailable: it cannot be had.
    """
    wanted = psycopg.conninfo.conninfo_to_dict(service_conninfo(conninfo, name, connect_timeout_s))
    if "target_session_attrs" not in psycopg.conninfo.conninfo_to_dict(conninfo):
        wanted["target_session_attrs"] = "any"
    made = psycopg.conninfo.make_conninfo("", **{key: str(value) for key, value in wanted.items()})
    async with await connect(made, statement_timeout_s=patience_s, connect_timeout_s=connect_timeout_s) as conn:
        yield conn


async def hears(conninfo: str, schema: str, *, connect_timeout_s: float) -> bool:
    """Whether a notification comes through: LISTEN on one connection, NOTIFY on another, over this address.

    Raises:
        DatabaseUnavailable: one of the connections cannot be had, or does not answer.
    """
    nonce = f"self-test {secrets.token_hex(8)}"
    made = service_conninfo(conninfo, "pg-supervisor doctor", connect_timeout_s)
    opening = {"statement_timeout_s": HEAR_S, "connect_timeout_s": connect_timeout_s}
    try:
        async with await connect(made, **opening) as conn, await connect(made, **opening) as other:
            listen = sql.SQL("listen {}").format(sql.Identifier(channel(schema)))
            await answered(conn, conn.execute(listen), HEAR_S)
            await answered(other, other.execute("select pg_notify(%s, %s)", (channel(schema), nonce)), HEAR_S)
            heard, until = False, time.monotonic() + HEAR_S
            while not heard and time.monotonic() < until:
                async for notice in conn.notifies(timeout=max(0.0, until - time.monotonic()), stop_after=1):
                    heard = notice.payload == nonce
            return heard
    except (psycopg.Error, TimeoutError) as error:
        raise DatabaseUnavailable(first_line(error) or "no answer in time", unsure=False) from error


def identifier(name: str) -> str:
    """*name* as SQL writes it."""
    return sql.Identifier(name).as_string(None)


def literal(text: str) -> str:
    """*text* as SQL writes it."""
    return sql.Literal(text).as_string(None)
