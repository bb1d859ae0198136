"""`supervisor demo`: its figures, its exit code, and that nothing of it is left behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest

from supervisor import exits
from supervisor.demo.figures import Report
from tests.support import proc
from tests.support.database import Database
from tests.support.service import ROOT
from tests.support.sizes import within
from tests.support.waiting import wait_until

CLEAN: Final = {key: value for key, value in os.environ.items() if not key.startswith(("SUPERVISOR_", "PG", "COLUMNS"))}
DEADLINE_S: Final = 60.0

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def demo(db: Database, tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        env = {**CLEAN, "PYTHONPATH": str(ROOT), "SUPERVISOR_DATABASE_URL": db.conninfo}
        process = subprocess.Popen(
            [sys.executable, "-m", "supervisor", "demo", *words],
            cwd=tmp_path,  # from anywhere: the lab's handlers are found beside the source
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            # Tests that run in a shell's background inherit that ^C is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (no threads here)
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        with process:
            for one in services_of(db):
                proc.kill(one)
            process.kill()


def services_of(db: Database) -> list[int]:
    """The pids of the services that work on *db* in a demo's schema."""
    if db.value("select to_regclass('supervisor_demo.parent') is null"):
        return []
    try:
        return [row[0] for row in db.rows("select pid from supervisor_demo.parent")]
    except psycopg.errors.UndefinedTable:
        return []  # dropped meanwhile


def nothing_left(db: Database) -> None:
    assert db.value("select to_regnamespace('supervisor_demo') is null")
    db.wait_for("select count(*) from pg_stat_activity where datname = current_database() and application_name like"
                " 'pg-supervisor%%'", 0, params=[])  # fmt: skip


def test_every_figure_is_as_the_article_says(db: Database, demo: Start) -> None:
    process = demo("--json")
    out, err = process.communicate(timeout=DEADLINE_S)
    document = json.loads(out)
    assert (process.returncode, document["ok"], document["failure"]) == (exits.OK, True, None), err

    measured = {figure["key"]: figure["measured"] for figure in document["figures"]}

    exact = {
        "enqueued": 500, "done": 496, "dead": 4, "unfinished": 0, "handler_calls": 518,
        "flaky_done_at_2": 10, "broken_dead_at_3": 4, "broken_errors_kept": 4, "slow_attempts": 1, "slow_calls": 1,
        "killed_culprit": "done, 1, 1", "abandoned_held": 10, "abandoned_done": 10,
        "exit_code": 0, "finished": 4, "running": 0, "queued": 36, "stop_calls": 4,
    }  # fmt: skip
    assert {key: measured[key] for key in exact} == exact
    assert measured["killed_back_s"] < within(1, busy_s=5)
    assert measured["abandoned_kept_s"] >= 0.4
    assert {figure["step"] for figure in document["figures"]} == {1, 2, 3, 4, 5}
    assert "518" in err  # people who ask for JSON see the table all the same, on the other stream
    nothing_left(db)


def test_a_service_that_ends_is_a_failure_with_its_reason(db: Database, demo: Start) -> None:
    process = demo("--json")
    [pid] = wait_until(lambda: services_of(db), DEADLINE_S, "the service runs")
    os.kill(pid, signal.SIGKILL)
    out, err = process.communicate(timeout=DEADLINE_S)
    document = json.loads(out)
    assert (process.returncode, document["ok"]) == (exits.FAILED, False), err
    assert "the service ended with code -9" in document["failure"]
    nothing_left(db)


def test_interrupted_it_leaves_nothing(db: Database, demo: Start) -> None:
    process = demo()
    [pid] = wait_until(lambda: services_of(db), DEADLINE_S, "the service runs")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert not proc.in_session(pid)
    nothing_left(db)


def test_a_schema_that_is_not_a_demos_is_left_alone(db: Database, demo: Start) -> None:
    db.execute("create schema supervisor_demo")
    db.execute("create table supervisor_demo.accounts ()")
    process = demo()
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == exits.FAILED
    assert "not a demo's" in err
    assert db.value("select to_regclass('supervisor_demo.accounts') is not null")


def test_two_demos_do_not_meet(db: Database, demo: Start) -> None:
    with db.connect() as other:
        other.execute("select pg_advisory_lock(hashtextextended('pg-supervisor demo', 0))")
        process = demo()
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == exits.FAILED
    assert "another `supervisor demo`" in err


def test_one_wrong_figure_is_a_wrong_report() -> None:
    right, wrong = Report(), Report()
    for report in (right, wrong):
        report.equal(2, "done", "jobs done", 496, 496)
        report.within(4, "back", "back", 0.5, least=0.4, most=1.0)
    wrong.within(4, "late", "late", 1.01, most=1.0)
    wrong.within(4, "never", "never", None)
    assert [figure.ok for figure in wrong.figures] == [True, True, False, False]
    assert (right.document()["ok"], wrong.document()["ok"]) == (True, False)
