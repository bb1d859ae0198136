"""Logins with the rights of one of the queue's roles, for tests that do as such a login what it may and may not.

    Roles (per test: prefix of its own) --login("worker")--> a URL

Roles belong to the whole server: they are made under the test's own prefix and dropped with its database.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql

from supervisor.db.migrate import MigrationReport, migrate
from supervisor.db.roles import names
from tests.support.database import Database
from tests.support.servers import ROLE

PASSWORD: Final = "of a login"
Conn = psycopg.Connection[tuple[Any, ...]]


class Roles:
    """The roles of one test's database."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.prefix = db.name
        self._logins: list[str] = []

    def make(self) -> MigrationReport:
        """`migrate --roles`, by the owner of the schema, who may create roles for the time."""
        with self.creating():
            return migrate(self.db.conninfo, self.db.schema, role_prefix=self.prefix)

    @contextlib.contextmanager
    def creating(self) -> Iterator[None]:
        """The owner of the test's database may create roles inside."""
        self.db.server.execute(f"alter role {ROLE} createrole")
        try:
            yield
        finally:
            self.db.server.execute(f"alter role {ROLE} nocreaterole")

    def login(self, *purposes: str) -> str:
        """The address of a new login that is a member of these purposes' roles; of none: of no role at all."""
        name = f"{self.prefix}_login{len(self._logins) + 1}"
        self._logins.append(name)
        for statement in (
            sql.SQL("create role {} login password {}").format(sql.Identifier(name), sql.Literal(PASSWORD)),
            *(
                sql.SQL("grant {} to {}").format(sql.Identifier(names(self.prefix)[one]), sql.Identifier(name))
                for one in purposes
            ),
        ):
            self.db.server.execute(statement.as_string(None))
        query = urlencode({"host": str(self.db.server.dir), "port": str(self.db.server.port)})
        return f"postgresql://{name}:{quote(PASSWORD)}@/{self.db.name}?{query}"

    def name_of(self, address: str) -> str:
        """The login's name."""
        return str(psycopg.conninfo.conninfo_to_dict(address)["user"])

    def connect(self, *purposes: str) -> Conn:
        """A connection of a new login, closed with the test's database."""
        conn = psycopg.connect(self.login(*purposes), autocommit=True)
        self.db._given.append(conn)
        return conn

    def drop(self) -> None:
        """Drop them all; the database is gone by then, or loses their rights now."""
        gone = [*self._logins, *names(self.prefix).values()]
        for dbname in (self.db.name, "postgres"):
            for name in gone:
                found = self.db.server.execute(f"select 1 from pg_roles where rolname = '{name}'")
                if found:
                    self.db.server.execute(f'drop owned by "{name}"', dbname)
        for name in gone:
            self.db.server.execute(f'drop role if exists "{name}"')
