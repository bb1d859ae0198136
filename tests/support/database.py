"""A database of its own for each test, copied from a migrated template.

    template (once per server: migrate, effects table) --create database--> Database --drop, forced--> gone

Always true: a test sees only its own jobs, and what it leaves connected does not outlive it.
"""

import itertools
import os
import time
from collections.abc import Sequence
from typing import Any, Final

import psycopg
import pytest

from tests.support.servers import Server

TEMPLATE: Final = "supervisor_template"
SCHEMA: Final = "supervisor"
EFFECTS: Final = """
create table effects (
    job_id  bigint not null,
    kind    text not null,
    attempt int not null,
    pid     int not null,
    at      timestamptz not null default clock_timestamp(),
    note    text not null default ''
)
"""  # no unique index: a job that runs twice must show

_numbers = itertools.count(1)
Row = tuple[Any, ...]


class Database:
    """One database on one server, for one test."""

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name
        self.schema = SCHEMA
        self.conninfo = server.conninfo(name)
        self._watcher: psycopg.Connection[Row] | None = None
        self._given: list[psycopg.Connection[Row]] = []

    @classmethod
    def create(cls, server: Server, *, migrated: bool = True) -> "Database":
        """Make a fresh database; unmigrated ones are empty, without the effects table too."""
        name = f"t_{os.getpid()}_{next(_numbers)}"
        template = _ensure_template(server) if migrated else "template0"
        _as_role(server, f"create database {name} template {template}")
        return cls(server, name)

    def drop(self) -> None:
        """Close what was given out and drop the database, whoever is connected."""
        for conn in (*self._given, *([self._watcher] if self._watcher else [])):
            conn.close()
        self.server.start()
        self.server.execute(f"drop database if exists {self.name} with (force)")

    # -- connections --------------------------------------------------------------------

    def connect(self, *, autocommit: bool = True, application_name: str = "test") -> psycopg.Connection[Row]:
        """Open a connection; it is closed at the end of the test if the test does not."""
        conn = psycopg.connect(self.conninfo, autocommit=autocommit, application_name=application_name)
        self._given.append(conn)
        return conn

    async def aconnect(
        self, *, autocommit: bool = True, application_name: str = "test"
    ) -> psycopg.AsyncConnection[Row]:
        """Open an async connection; the test closes it (`async with await db.aconnect() as conn`)."""
        return await psycopg.AsyncConnection.connect(
            self.conninfo, autocommit=autocommit, application_name=application_name
        )

    # -- questions ----------------------------------------------------------------------

    def rows(self, sql: str, params: Sequence[object] | dict[str, object] | None = None) -> list[Row]:
        """Return all rows, over a connection kept for such questions; it is made anew if the server went away."""
        for attempt in (1, 2):
            if self._watcher is None or self._watcher.closed:
                self._watcher = psycopg.connect(self.conninfo, autocommit=True, application_name="test watcher")
                # The tables a test changes under it would spoil prepared statements.
                self._watcher.prepare_threshold = None
            try:
                done = self._watcher.execute(sql.encode(), params)
                return done.fetchall() if done.description else []
            except psycopg.OperationalError:
                self._watcher.close()
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    def execute(self, sql: str, params: Sequence[object] | dict[str, object] | None = None) -> None:
        self.rows(sql, params)

    def value(self, sql: str, params: Sequence[object] | dict[str, object] | None = None) -> Any:
        """Return the first column of the only row; None if there is no row."""
        found = self.rows(sql, params)
        assert len(found) <= 1, f"{len(found)} rows instead of one for: {sql}"
        return found[0][0] if found else None

    def wait_for(
        self,
        sql: str,
        expected: object,
        deadline_s: float = 10.0,
        params: Sequence[object] | dict[str, object] | None = None,
    ) -> None:
        """Ask *sql* until its value is *expected*; a server that is away for now is waited for too."""
        began = time.monotonic()
        pause = 0.005
        while True:
            try:
                seen = self.value(sql, params)
            except psycopg.OperationalError as exc:
                seen = exc
            if seen == expected:
                return
            if time.monotonic() - began > deadline_s:
                pytest.fail(f"not within {deadline_s:g} s: {expected!r} from {sql!r}; last seen: {seen!r}")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)

    def statuses(self) -> dict[str, int]:
        """Return how many jobs have each status, from the public view."""
        return dict(self.rows(f"select status::text, count(*)::int from {self.schema}.jobs group by 1 order by 1"))

    def effects(self, note: str | None = None) -> dict[int, int]:
        """Return how many effects each job left (with this note)."""
        return dict(
            self.rows(
                "select job_id, count(*)::int from effects where %(note)s::text is null or note = %(note)s group by 1",
                {"note": note},
            )
        )

    def server_sessions(self, application_name: str = "supervisor%") -> list[Row]:
        """Return (pid, application_name, state, query) of the sessions in this database whose name is like it."""
        return self.rows(
            "select pid, application_name, state, query from pg_stat_activity"
            " where datname = current_database() and application_name like %s order by pid",
            [application_name],
        )

    def terminate_sessions(self, application_name: str = "supervisor%") -> int:
        """End those sessions on the server's side and return how many there were."""
        found = self.rows(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and application_name like %s and pid <> pg_backend_pid()",
            [application_name],
        )
        return len(found)


def _ensure_template(server: Server) -> str:
    exists = server.execute(f"select 1 from pg_database where datname = '{TEMPLATE}'")
    if not exists:
        from supervisor.db.migrate import migrate

        making = f"{TEMPLATE}_new"
        server.execute(f"drop database if exists {making} with (force)")
        _as_role(server, f"create database {making} template template0")
        migrate(server.conninfo(making), schema=SCHEMA)
        with psycopg.connect(server.conninfo(making), autocommit=True) as conn:
            conn.execute(EFFECTS.encode())
        # It gets its name when complete: a migration that fails is tried again by the next test.
        _as_role(server, f"alter database {making} rename to {TEMPLATE}")
    return TEMPLATE


def _as_role(server: Server, sql: str) -> None:
    with psycopg.connect(server.conninfo(), autocommit=True) as conn:
        conn.execute(sql.encode())
