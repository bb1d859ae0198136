"""The whole product under its least-privilege roles: nothing it does needs more than the role it runs as has."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from supervisor import exits
from supervisor.client import enqueue, enqueue_many
from supervisor.newjob import NewJob
from tests.support.dashboard import Dashboard
from tests.support.database import Database
from tests.support.fault_handlers import MODULES
from tests.support.queue import Holder
from tests.support.roles import Roles
from tests.support.service import ROOT, Service

Start = Callable[..., Service]
ARGUMENTS: Final[dict[str, dict[str, object]]] = {
    "t.fail": {"times": 1},
    "t.snooze": {"after": 0.1, "until": time.time() + 1},
}
BULK: Final = "tests.support.bulk_handlers"


def run(address: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command with this login."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SUPERVISOR_", "PG"))}
    return subprocess.run(
        [sys.executable, "-m", "supervisor", *words],
        cwd=ROOT,
        env={**kept, "PYTHONPATH": str(ROOT), "SUPERVISOR_DATABASE_URL": address},
        capture_output=True,
        text=True,
        timeout=60,
    )


def document(address: str, *words: str) -> Any:
    done = run(address, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.pg("15", "18")
def test_a_service_does_all_its_work_as_a_worker(db: Database, roles: Roles, service: Start) -> None:
    """Every ending of a job, a crash, a lost supervisor's jobs, retention and drain; no refusal is logged."""
    worker, producer = roles.login("worker"), roles.login("producer")
    db.execute("grant insert on effects to public")
    db.execute(
        "create table supervisor.history_20200101 partition of supervisor.history"
        " for values from ('2020-01-01 00:00:00+00') to ('2020-01-02 00:00:00+00')"
    )
    db.execute(
        "insert into supervisor.dead_letter (id, status, reason, finished_at, run_at, created_at, claims, attempts,"
        " max_attempts, crashes, max_crashes, priority, queue, kind, payload, headers, errors)"
        " values (999999, 'dead', 'attempts', '2020-01-01', '2020-01-01', '2020-01-01', 1, 1, 1, 0, 3, 0, 'q', 'k',"
        " '{}', '{}', '[]')"
    )
    db.execute("insert into supervisor.history_default select (jsonb_populate_record(null::supervisor.history,"
               " to_jsonb(d) || '{\"finished_at\": \"2020-02-02\"}')).* from supervisor.dead_letter d")  # fmt: skip
    db.execute("select supervisor.set_queue('limited', 2)")
    db.execute("insert into supervisor.job (kind, queue) values ('t.effect', 'lost')")
    lost = Holder(db, lease_s=0.1)  # a supervisor of before: nobody renews its lease
    assert len(lost.claim(lanes=[_lane("lost")]).jobs) == 1
    one = service(
        handlers=f"{MODULES},{BULK}",
        processes=2,
        retry_base_s=0.02,
        lease_s=5,
        health_port="auto",
        env={"SUPERVISOR_DATABASE_URL": worker},
    )
    with psycopg.connect(producer) as conn:
        kinds = ["t.effect", "t.effect_sync", "f.transaction", "f.transaction_sync", "t.fail", "t.snooze", "t.cancel"]
        jobs = enqueue_many(
            conn,
            [NewJob(kind, ARGUMENTS.get(kind, {})) for _ in range(20) for kind in kinds],
        )
        enqueue(conn, "b.bulk", {"count": 2500})
        for _ in range(5):
            enqueue(conn, "t.noop", queue="limited")
        enqueue(conn, "nobody.knows.this", queue="odd")
        conn.commit()
    db.wait_for("select count(*)::int from supervisor.job where queue <> 'odd'", 0, 60)
    os.kill(one.worker_pids()[0], signal.SIGKILL)
    with psycopg.connect(producer) as conn:
        late = enqueue(conn, "t.effect")
    db.wait_for("select status from supervisor.jobs where id = %s", "done", params=[late.id])
    assert db.value("select count(*)::int from supervisor.jobs where status = 'done' and id = any (%s)",
                    [[job.id for job in jobs]]) == 120  # fmt: skip
    assert db.value("select count(*)::int from supervisor.history where kind = 't.noop'") == 2505
    assert db.value("select crashes from supervisor.history where queue = 'lost'") == 1
    db.wait_for("select count(*)::int from supervisor.job where unknown_since is not null", 1)
    db.wait_for("select to_regclass('supervisor.history_20200101') is null", True)
    db.wait_for("select count(*)::int from supervisor.jobs where id = 999999", 0)
    db.wait_for("select sum(n) > 2600 from supervisor.tally where event = 'done'", True, 40)
    db.wait_for("select count(*) > 0 from supervisor.session where doing is not null", True)
    assert one.stop() == exits.OK
    assert db.value("select count(*)::int from supervisor.parent") == 0
    told = [event for event in one.log if "permission denied" in json.dumps(event)]
    assert told == []
    assert one.events("handlers.failed") == []


def _lane(queue: str) -> Any:
    from supervisor.db.jobs import Lane

    return Lane(queue, 0)


def test_commands_do_what_their_roles_may_and_say_what_they_may_not(db: Database, roles: Roles, tmp_path: Path) -> None:
    producer, operator, reader = (roles.login(purpose) for purpose in ("producer", "operator", "reader"))
    added = document(producer, "enqueue", "k", "{}")
    for look in (["status"], ["jobs", "list"], ["jobs", "show", str(added["id"])]):
        assert run(reader, *look).returncode == exits.OK
    assert run(operator, "status").returncode == exits.OK
    refused = run(producer, "status")
    assert refused.returncode == exits.FAILED
    assert "permission denied" in refused.stderr
    assert refused.stderr.count("\n") == 1
    act = ["jobs", "cancel", str(added["id"])]
    for who in (producer, reader):
        assert run(who, *act).returncode == exits.FAILED
    assert document(operator, *act)["cancelled"] == 1
    assert document(operator, "jobs", "retry", str(added["id"]))["retried"] == 1
    for who in (operator, reader):
        refused = run(who, "enqueue", "k")
        assert refused.returncode == exits.FAILED
        assert "permission denied for function enqueue" in refused.stderr
    assert db.statuses() == {"queued": 1}


def test_migrate_says_which_roles_it_granted_and_prints_what_it_would_run(db: Database) -> None:
    made = Roles(db)
    try:
        refused = run(db.conninfo, "migrate", "--roles", "--role-prefix", made.prefix)
        assert refused.returncode == exits.FAILED
        assert f'create role "{made.prefix}_producer" nologin;' in refused.stderr
        assert refused.stderr.count("\n") == 1
        printed = run(
            "postgresql://nobody@127.0.0.1:1/none", "migrate", "--roles", "--role-prefix", made.prefix, "--print"
        )
        assert printed.returncode == exits.OK
        assert "begin;" in printed.stdout
        assert printed.stdout.rstrip().endswith("commit;")
        with made.creating():
            done = document(db.conninfo, "migrate", "--roles", "--role-prefix", made.prefix)
        assert done["roles"] == [f"{made.prefix}_{one}" for one in ("producer", "worker", "operator", "reader")]
        for words in (["--print"], ["--role-prefix", "x"]):
            assert run(db.conninfo, "migrate", *words).returncode == exits.USAGE
    finally:
        made.drop()


@pytest.mark.parametrize("purpose", ["operator", "reader"])
def test_the_dashboard_works_with_a_role_that_may_only_look_or_also_act(
    db: Database, roles: Roles, service: Start, purpose: str
) -> None:
    """Every page, and every order by its function; a reader's order is refused in words and changes nothing."""
    service(processes=1, queues="other")  # so that the pages have something to show
    [job] = enqueue_many(db.connect(), [NewJob("t.noop", in_=timedelta(hours=1))])
    db.execute("select supervisor.pause_queue('mail')")
    address = roles.login(purpose)
    with Dashboard(db, env={"SUPERVISOR_DATABASE_URL": address}) as dashboard:
        for path in ("/", "/jobs", f"/jobs/{job.id}", "/queues", "/health"):
            answer = dashboard.get(path)
            assert (answer.status_code, "permission denied" in answer.text) == (200, False), path
        report = dashboard.wait_json("/health", lambda data: data["doctor"], 30)["doctor"]
        rights = [found["level"] for found in report["findings"] if found["check"] == "rights"]
        assert rights == (["ok"] if purpose == "operator" else ["problem"])
        ordered = [
            dashboard.order(order="cancel", id=job.id),
            dashboard.order(order="retry", id=job.id),
            dashboard.order(order="reschedule", id=job.id, **{"in": "2", "unit": "h"}),
            dashboard.order("/queues/order", order="resume", queue="mail"),
            dashboard.order("/queues/order", order="pause", queue="mail"),
            dashboard.order("/queues/order", order="limit", queue="bulk", max_running="3"),
            dashboard.order("/queues/order", order="unlimit", queue="bulk"),
        ]
        assert "permission denied" in dashboard.log() or purpose == "operator"
    if purpose == "operator":
        assert [answer.status_code for answer in ordered] == [303] * len(ordered)
        assert db.statuses() == {"queued": 1}
        assert db.value("select run_at > now() + interval '90 min' from supervisor.job") is True
    else:
        assert all(answer.status_code >= 400 for answer in ordered)
        assert db.value("select run_at < now() + interval '90 min' from supervisor.job") is True
        assert db.rows("select name from supervisor.queue") == [("mail",)]
