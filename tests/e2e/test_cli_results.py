"""`supervisor jobs show`: how far a job has come, what it returned, what it waits for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor import result_of
from tests.e2e.test_cli import Cli
from tests.support.database import Database
from tests.support.jobs import enqueue
from tests.support.service import Service


@pytest.fixture
def cli(db: Database, tmp_path: Path) -> Cli:
    return Cli(tmp_path, SUPERVISOR_DATABASE_URL=db.conninfo)


def test_show_tells_progress_and_result(cli: Cli, db: Database, service: Callable[..., Service]) -> None:
    service(processes=1, handlers="tests.support.result_handlers")
    [running] = enqueue(db, "r.progress", {"steps": 100_000, "pause": 0.01})
    [done] = enqueue(db, "r.add", {"a": 1, "b": 2})
    [brief] = enqueue(db, "r.brief")
    assert result_of(db.connect(), done, timeout=10) == {"total": 3, "parts": [1, 2]}
    db.wait_for("select progress is not null from supervisor.jobs where id = %s", True, params=[running])
    shown = cli("jobs", "show", str(running))
    assert "progress" in shown.out
    assert "of 100000" in shown.out
    assert '"total": 3' in cli("jobs", "show", str(done)).out
    document = cli("jobs", "show", str(done), "--json").document
    assert (document["result"], document["progress"]) == ({"total": 3, "parts": [1, 2]}, None)
    db.wait_for("select bool_and(expires_at < now()) from supervisor.result where job_id = %s", True, params=[brief])
    assert "past its time" in cli("jobs", "show", str(brief)).out


def test_show_tells_what_a_job_waits_for(cli: Cli, db: Database) -> None:
    [first] = enqueue(db, "k", ordering_key="invoice 7")
    shown = cli("jobs", "show", str(first))
    assert "invoice 7" in shown.out
    assert "its turn in its ordering key" in shown.out
