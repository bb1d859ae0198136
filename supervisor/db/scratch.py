"""Databases for tests: a migrated template, and copies of it that live as long as a test.

    Scratch(conninfo) --template()--> migrated once --copy()--> conninfo of a fresh database --drop()--> gone

Names carry the process id, so that test runs side by side do not meet. `close` drops what is left.
"""

from __future__ import annotations

import itertools
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from supervisor.db.migrate import migrate

if TYPE_CHECKING:
    from collections.abc import Iterator


class Scratch:
    """What one test run makes on the server of *conninfo*, whose role may create databases."""

    def __init__(self, conninfo: str, schema: str) -> None:
        self._conninfo = conninfo
        self._schema = schema
        self._prefix = f"supervisor_test_{os.getpid()}"
        self._numbers = itertools.count(1)
        self._names: list[str] = []

    def template(self) -> str:
        """The address of the migrated database that copies are made of; made with the first call."""
        name = f"{self._prefix}_template"
        if name not in self._names:
            self._create(name, "template0")
            migrate(self.address(name), schema=self._schema)
        return self.address(name)

    def copy(self) -> str:
        """The address of a fresh copy of the template, which must not be in use."""
        self.template()
        name = f"{self._prefix}_{next(self._numbers)}"
        self._create(name, f"{self._prefix}_template")
        return self.address(name)

    def drop(self, address: str) -> None:
        """Drop what `copy` made, whoever is connected."""
        name = str(conninfo_to_dict(address)["dbname"])
        self._execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
        self._names.remove(name)

    def close(self) -> None:
        """Drop everything."""
        for name in list(self._names):
            self.drop(self.address(name))

    def address(self, name: str) -> str:
        """The conninfo of database *name* on this server."""
        return make_conninfo(self._conninfo, dbname=name)

    def _create(self, name: str, template: str) -> None:
        self._names.append(name)
        self._execute(sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template)))

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self._conninfo, autocommit=True) as conn:
            conn.execute(statement)


@contextmanager
def rolled_back(address: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection whose open transaction is rolled back in the end."""
    conn = psycopg.connect(address)
    try:
        yield conn
        conn.rollback()
    finally:
        conn.close()


def careless(address: str) -> None:
    """Turn durability off on a server that is thrown away: waits for the disk are most of a small test's time."""
    with psycopg.connect(address, autocommit=True) as conn:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            conn.execute(sql.SQL("alter system set {} = off").format(sql.Identifier(setting)))
        conn.execute("select pg_reload_conf()")


def forget_jobs(address: str, schema: str) -> int:
    """Delete the jobs that the database keeps, in whatever state; how many there were."""
    tables = [sql.Identifier(schema, name) for name in ("job", "history", "dead_letter")]
    with psycopg.connect(address) as conn:
        return sum(conn.execute(sql.SQL("delete from {}").format(table)).rowcount for table in tables)
