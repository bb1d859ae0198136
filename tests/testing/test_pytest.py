"""The fixtures of supervisor.testing.pytest, in a test run of an application's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import Server

TESTS = """
import psycopg
import pytest
from supervisor import enqueue
from supervisor.testing import assert_enqueued, drain

seen = set()

@pytest.mark.parametrize("n", [1, 2])
def test_each_has_a_transaction(supervisor_conn, n):
    assert_enqueued(supervisor_conn, "mail", count=0)
    enqueue(supervisor_conn, "mail", {"n": n})
    assert_enqueued(supervisor_conn, "mail", count=1)

@pytest.mark.parametrize("n", [1, 2])
def test_each_has_a_database(supervisor_db, n):
    assert supervisor_db not in seen
    seen.add(supervisor_db)
    with psycopg.connect(supervisor_db) as conn:
        enqueue(conn, "mail", {"n": n})
    with psycopg.connect(supervisor_db) as conn:
        assert_enqueued(conn, "mail", {"n": n}, count=1)
        assert [ran.status for ran in drain(conn)] == ["queued"]

def test_a_commit_is_told(supervisor_conn):
    enqueue(supervisor_conn, "mail", {})
    supervisor_conn.commit()

def test_and_is_gone(supervisor_conn):
    assert_enqueued(supervisor_conn, "mail", count=0)
"""


@pytest.mark.parametrize("where", ["embedded", "given"])
def test_the_fixtures_work_and_leave_nothing(where: str, tmp_path: Path, server: Server) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["supervisor.testing.pytest"]\n')
    (tmp_path / "test_app.py").write_text(TESTS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SUPERVISOR_", "PYTEST"))}
    if where == "given":
        environment["SUPERVISOR_TEST_DATABASE_URL"] = server.conninfo()
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_app.py"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as child:
        said, _ = child.communicate(timeout=100)
    assert "6 passed, 1 error" in said, said
    assert "ERROR test_app.py::test_a_commit_is_told" in said, said
    assert "1 jobs were committed on supervisor_conn" in said, said
    assert not server.execute(f"select datname from pg_database where datname like 'supervisor_test_{child.pid}%'")
    assert not Path(f"/tmp/pg-supervisor-test-{child.pid}").exists()
