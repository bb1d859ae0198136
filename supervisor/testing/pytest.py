"""Fixtures for applications' tests: `pytest_plugins = ["supervisor.testing.pytest"]` in the top conftest.py.

    supervisor_server (session)   conninfo of a server: SUPERVISOR_TEST_DATABASE_URL, or an embedded PostgreSQL
    supervisor_db                 conninfo of a fresh database with the queue's tables, dropped after the test
    supervisor_conn               a psycopg Connection, whose transaction is rolled back after the test

The embedded server (extra `embedded`) lives in a directory of its own that goes when the test run ends. The queue's
tables are made once per run, in a template that fresh databases are copies of. With pytest-xdist each process has
its own.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.db.embedded import EmbeddedPostgres
from supervisor.db.scratch import Scratch, careless, forget_jobs, rolled_back
from supervisor.db.statements import queue_schema

if TYPE_CHECKING:
    from supervisor.db.enqueue import SyncConn


@pytest.fixture(scope="session")
def supervisor_server() -> Iterator[str]:
    """Conninfo of a PostgreSQL server whose role may create databases."""
    given = os.environ.get("SUPERVISOR_TEST_DATABASE_URL")
    if given:
        yield given
        return
    # Not below pytest's own directories: those are closed to the account that runs PostgreSQL for root.
    home = Path(tempfile.gettempdir()) / f"pg-supervisor-test-{os.getpid()}"
    try:
        with EmbeddedPostgres() as embedded:
            address = embedded.start(home)
            careless(address)
            yield address
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def supervisor_scratch(supervisor_server: str) -> Iterator[Scratch]:
    """Makes the databases."""
    found = Scratch(supervisor_server, queue_schema(None))
    yield found
    found.close()


@pytest.fixture
def supervisor_db(supervisor_scratch: Scratch) -> Iterator[str]:
    """Conninfo of a fresh, migrated database."""
    address = supervisor_scratch.copy()
    yield address
    supervisor_scratch.drop(address)


@pytest.fixture(scope="session")
def supervisor_shared_db(supervisor_scratch: Scratch) -> str:
    """Conninfo of the database that `supervisor_conn` connects to, for the tables of the application."""
    return supervisor_scratch.copy()


@pytest.fixture
def supervisor_conn(supervisor_shared_db: str) -> Iterator[SyncConn]:
    """A connection in a transaction that is rolled back."""
    with rolled_back(supervisor_shared_db) as conn:
        yield conn
    left = forget_jobs(supervisor_shared_db, queue_schema(None))
    if left:
        pytest.fail(
            f"{left} jobs were committed on supervisor_conn, for other tests to see, and are deleted: use supervisor_db"
        )
