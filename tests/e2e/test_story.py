"""`supervisor jobs story`: one job's way, from a real service and real operators, as the command tells it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from supervisor import exits
from tests.e2e.test_cli import Cli
from tests.support.database import Database
from tests.support.jobs import enqueue, job
from tests.support.service import Service
from tests.support.waiting import wait_until


def whats(document: dict[str, Any]) -> list[str]:
    return [step["what"] for step in document["steps"]]


def test_a_job_that_failed_crashed_was_put_back_and_moved(
    db: Database, service: Callable[..., Service], tmp_path: Path
) -> None:
    cli = Cli(tmp_path, SUPERVISOR_DATABASE_URL=db.conninfo)
    one = service(processes=1, retry_base_s=0.01)
    [job_id] = enqueue(db, "t.exit", max_crashes=2, delay=1.5)
    wait_until(lambda: job(db, job_id)["status"] == "dead", 20, "it is dead")
    assert one.stop() == exits.OK
    assert cli("jobs", "retry", str(job_id)).code == 0
    db.execute("select supervisor.reschedule_job(array[%s::bigint], p_delay => '1 hour')", [job_id])
    document = cli("jobs", "story", str(job_id), "--json").document
    crashes = [step for step in document["steps"] if step["what"] == "crashed"]
    assert len(crashes) == 2
    assert all("its worker died while running it" in step["error"] for step in crashes)
    assert whats(document)[0] == "enqueued"
    assert whats(document)[-3:] == ["retried", "rescheduled", "due"]
    assert {step["by"] for step in document["steps"]} == {None, db.value("select session_user")}
    times = [step["at"] for step in document["steps"]]
    assert times == sorted(times)
    assert document["steps"][-1]["to_come"]
    assert "due again (in " in cli("jobs", "story", str(job_id), COLUMNS="160").out
    assert cli("jobs", "cancel", str(job_id)).code == 0
    document = cli("jobs", "story", str(job_id), "--json").document
    assert whats(document)[-2:] == ["cancelled", "cancelled"], "ordered, and done at once; it will not be due"
    ended = cli("jobs", "story", str(job_id), COLUMNS="160")
    for words in ("as a crash", "put back by an operator", "moved by an operator", "cancelled by an operator"):
        assert words in ended.out, ended.out
    assert " due" not in ended.out


def test_a_job_that_is_done_and_one_that_never_was(
    db: Database, service: Callable[..., Service], tmp_path: Path
) -> None:
    cli = Cli(tmp_path, SUPERVISOR_DATABASE_URL=db.conninfo)
    one = service(processes=1, retry_base_s=0.01)
    [job_id] = enqueue(db, "t.effect")
    wait_until(lambda: job(db, job_id)["status"] == "done", 20, "it is done")
    document = cli("jobs", "story", str(job_id), "--json").document
    assert whats(document) == ["enqueued", "started", "done"]
    assert document["unknown"] == []
    cli("jobs", "story", "999").refused(exits.FAILED, "job 999", "KEEP_HISTORY_DAYS")
    assert one.stop() == exits.OK
