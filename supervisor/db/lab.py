"""What `supervisor demo` asks the database: a schema of its own, and counts of what happened in it.

    claim the schema --> migrate, make lab_call --> questions --> drop it

Always true: a schema that is not a demo's is never dropped, and two demos never share one: the schema is
guarded by an advisory lock for as long as the connection lives.

Elsewhere: what the answers should be (demo/steps.py); who writes lab_call (handlers/lab.py).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg
from psycopg import Connection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from supervisor.db.house import HouseConnection
from supervisor.db.link import connect, first_line, service_conninfo
from supervisor.db.migrate import migrate
from supervisor.db.operate import refusals
from supervisor.errors import DatabaseUnavailable, SupervisorError

SCHEMA: Final = "supervisor_demo"
_NAME: Final = sql.Identifier(SCHEMA)
_CALLS: Final = """
create table {schema}.lab_call (
    kind text, job_id bigint, attempt int, pid int, at timestamptz default clock_timestamp()
)
"""  # no key: a handler called twice must show


class SchemaTaken(SupervisorError):
    """The demo's schema is in use."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one session holds: its name, and the ids of its jobs by whether a handler was called for them."""

    session: int
    name: str
    started: list[int]
    unstarted: list[int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one job."""

    id: int
    kind: str
    status: str
    attempts: int
    crashes: int
    reason: str | None
    error: str | None


class LabDatabase:
    """The demo's schema, over one connection."""

    def __init__(self, conn: Connection, conninfo: str) -> None:
        self._conn = conn
        self.conninfo = conninfo
        self.calls_conninfo = make_conninfo(
            conninfo, options=f"{conninfo_to_dict(conninfo).get('options') or ''} -csearch_path={SCHEMA}".strip()
        )
        """Where handlers find the table `lab_call` without naming its schema."""

    @property
    def connection(self) -> Connection:
        """The connection, for enqueueing."""
        return self._conn

    async def another_connection(self) -> HouseConnection:
        """A connection of its own, set up as a worker's."""
        conninfo = service_conninfo(self.conninfo, "pg-supervisor demo", 5.0)
        return await connect(conninfo, statement_timeout_s=15.0, connect_timeout_s=5.0)

    def _rows(self, query: LiteralString, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._conn.execute(sql.SQL(query).format(schema=_NAME), parameters).fetchall()

    def statuses(self) -> dict[str, int]:
        """Jobs by status."""
        return dict(self._rows("select status, count(*) from {schema}.jobs group by 1"))

    def calls(self, ids: Sequence[int]) -> int:
        """Handler calls for the jobs *ids*."""
        return int(self._rows("select count(*) from {schema}.lab_call where job_id = any (%s)", [list(ids)])[0][0])

    def callers(self, ids: Sequence[int]) -> set[int]:
        """The processes that were called for the jobs *ids*."""
        return {r[0] for r in self._rows("select pid from {schema}.lab_call where job_id = any (%s)", [list(ids)])}

    def since_last_first_call_s(self, ids: Sequence[int]) -> float:
        """Seconds since the latest of the jobs' first calls, by the database's clock."""
        query: LiteralString = (
            "select extract(epoch from clock_timestamp() - max(x.at))::float8 from "
            "(select min(at) as at from {schema}.lab_call where job_id = any (%s) group by job_id) x"
        )
        return float(self._rows(query, [list(ids)])[0][0] or 0.0)

    def living(self, ids: Sequence[int]) -> int:
        """How many of the jobs are queued or running."""
        return int(self._rows("select count(*) from {schema}.job where id = any (%s)", [list(ids)])[0][0])

    def claimed(self, ids: Sequence[int]) -> int:
        """How many of the jobs some session holds."""
        query: LiteralString = "select count(*) from {schema}.job where id = any (%s) and lease is not null"
        return int(self._rows(query, [list(ids)])[0][0])

    def held_by(self, session: int, ids: Sequence[int]) -> int:
        """How many of the jobs *session* still holds."""
        query: LiteralString = "select count(*) from {schema}.job where id = any (%s) and lease = %s"
        return int(self._rows(query, [list(ids), session])[0][0])

    def holder(self, job_id: int) -> Held | None:
        """The session that holds *job_id* while its handler runs, with all its jobs; None before that."""
        query: LiteralString = (
            "select s.id, s.name, j.id, exists (select from {schema}.lab_call c where c.job_id = j.id) "
            "from {schema}.job j join {schema}.session s on s.id = j.lease "
            "where j.lease = (select lease from {schema}.job where id = %s) order by j.id"
        )
        rows = self._rows(query, [job_id])
        started = [row[2] for row in rows if row[3]]
        if job_id not in started:
            return None
        return Held(rows[0][0], rows[0][1], started, [row[2] for row in rows if not row[3]])

    def outcomes(self, ids: Sequence[int]) -> list[Outcome]:
        """What became of each of the jobs."""
        query: LiteralString = (
            "select id, kind, status, attempts, crashes, reason, last_error "
            "from {schema}.jobs where id = any (%s) order by id"
        )
        return [Outcome(*row) for row in self._rows(query, [list(ids)])]

    def shortest_retry_s(self, kind: str, after_attempt: int) -> float | None:
        """The least time between a kind's calls of one attempt and of the next."""
        query: LiteralString = (
            "select min(extract(epoch from b.at - a.at))::float8 from {schema}.lab_call a "
            "join {schema}.lab_call b on b.job_id = a.job_id and b.attempt = a.attempt + 1 "
            "where a.kind = %s and a.attempt = %s"
        )
        found = self._rows(query, [kind, after_attempt])[0][0]
        return None if found is None else float(found)


@contextmanager
def lab_database(conninfo: str) -> Iterator[LabDatabase]:
    """The demo's schema, fresh; dropped at the end.

    Raises:
        SchemaTaken: another demo uses it, or the schema of that name is something else's.
        DatabaseUnavailable, StatementRefused: as they say.
    """
    try:
        conn = psycopg.connect(service_conninfo(conninfo, "pg-supervisor demo", 5.0), autocommit=True)
    except psycopg.Error as error:
        raise DatabaseUnavailable(first_line(error)) from error
    with refusals(SCHEMA), conn:
        _claim(conn)
        _drop(conn)
        try:
            migrate(conninfo, SCHEMA)
            conn.execute(sql.SQL(_CALLS).format(schema=_NAME))
            yield LabDatabase(conn, conninfo)
        finally:
            if not conn.closed:
                _drop(conn)


def _claim(conn: Connection) -> None:
    row = conn.execute("select pg_try_advisory_lock(hashtextextended('pg-supervisor demo', 0))").fetchone()
    if not row or not row[0]:
        raise SchemaTaken("another `supervisor demo` runs in this database: wait for it, or use another database")
    there, ours = conn.execute(
        "select to_regnamespace(%s) is not null, to_regclass(%s) is not null", (SCHEMA, f"{SCHEMA}.lab_call")
    ).fetchone() or (False, False)
    if there and not ours:
        raise SchemaTaken(f"schema {SCHEMA!r} is there and is not a demo's: drop or rename it, or use another database")


def _drop(conn: Connection) -> None:
    conn.execute("set client_min_messages = warning")
    conn.execute(sql.SQL("drop schema if exists {} cascade").format(_NAME))
