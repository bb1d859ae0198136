"""What workers run right now: written by their parents, at once while somebody looks, at no cost to anybody else."""

import json
import time
from collections.abc import Callable
from typing import Any

from tests.support.dashboard import Dashboard
from tests.support.database import Database
from tests.support.jobs import enqueue
from tests.support.service import Service
from tests.support.waiting import wait_until

Start = Callable[..., Dashboard]
LOOK = "select pg_notify('supervisor', %s)"
SEEN = "select extract(epoch from max(seen_at))::float8 from supervisor.session where closed_at is null"


def doing(db: Database) -> list[dict[str, Any]]:
    """What the open sessions say, by slot."""
    rows = db.rows("select doing from supervisor.session where closed_at is null and doing is not null order by name")
    return [row[0] for row in rows]


def test_parents_write_what_their_workers_run(db: Database, service: Callable[..., Service]) -> None:
    ids = enqueue(db, "t.sleep", {"seconds": 60}, count=3)
    one = service(processes=1, concurrency=2, prefetch=5, lease_s=3)
    db.wait_for("select count(*)::int from effects where note = 'start'", 2)

    [told] = wait_until(
        lambda: [t for t in doing(db) if (t["running"], t["claimed"]) == (2, 1)], 10, "it is written with the renewals"
    )

    assert (told["slot"], told["pid"], told["state"]) == (0, one.worker_pids()[0], "ready")
    assert {job["id"] for job in told["jobs"]} <= set(ids)
    assert [(job["kind"], job["phase"]) for job in told["jobs"]] == [("t.sleep", "started")] * 2
    assert all(abs(job["started"] - time.time()) < 30 for job in told["jobs"])


def test_while_somebody_looks_it_is_a_second_old_at_most(db: Database, service: Callable[..., Service]) -> None:
    """With the default lease it is written every ten seconds; a look makes that one, and wears off."""
    service(processes=2)
    wait_until(lambda: len(doing(db)) == 2, 20, "both workers are written down")
    began = db.value(SEEN)
    db.rows(LOOK, [json.dumps({"look": 3, "cancel": 0, "session": 0, "claims": 0})])
    times = {began}
    until = time.monotonic() + 3.5
    while time.monotonic() < until:
        times.add(db.value(SEEN))
        time.sleep(0.05)
    assert 3 <= len(times) <= 6, f"{len(times)} writings in three seconds"
    worn_off = db.value(SEEN)
    [job_id] = enqueue(db, "t.effect")
    db.wait_for("select count(*)::int from effects where job_id = %s", 1, params=[job_id])
    assert db.value(SEEN) - worn_off < 1.5, "nobody looks any more"


def test_the_dashboard_says_that_somebody_looks_and_rarely(
    db: Database, service: Callable[..., Service], dashboard: Start
) -> None:
    service(processes=1)
    listener = db.connect()
    listener.execute("listen supervisor")
    page = dashboard()
    for _ in range(30):
        page.get("/")
    looks = [n for n in listener.notifies(timeout=1.0) if "look" in n.payload]
    assert 1 <= len(looks) <= 2, "thirty pages at once, one word"
    [job_id] = enqueue(db, "t.sleep", {"seconds": 60})

    def shown(data: dict[str, Any]) -> bool:
        workers = [worker for one in data["supervisors"] for worker in one["workers"]]
        return any(job["id"] == job_id and worker["fresh"] for worker in workers for job in worker["jobs"])

    page.wait_json("/", shown, 8, "the job that runs is shown while one looks")
    assert page.json("/jobs?status=running")["jobs"][0]["id"] == job_id


def test_a_look_is_nothing_to_a_parent_that_does_not_know_it(db: Database, service: Callable[..., Service]) -> None:
    """To an older release it reads as the cancelling of job 0 of no session; odd ones are ignored by this one."""
    one = service(processes=1)
    db.rows(LOOK, [json.dumps({"cancel": 0, "session": 0, "claims": 0})])
    for odd in ({"look": "x"}, {"look": None}, {"look": 1e308}, {"look": -5}):
        db.rows(LOOK, [json.dumps(odd)])
    [job_id] = enqueue(db, "t.effect")
    db.wait_for("select count(*)::int from effects where job_id = %s", 1, params=[job_id])
    assert not one.events("parent.part_ended")
    assert not one.events("job.cancelling")


def test_without_supervisors_running_jobs_are_found_all_the_same(db: Database, dashboard: Start) -> None:
    """Claimed rows stand at the front of their lanes, whoever holds them and whatever they say."""
    ids = enqueue(db, "t.noop", count=50)
    db.execute("insert into supervisor.lane values ('default', 0)")
    db.execute("update supervisor.job set lease = 5, started_at = now() where id = any(%s)", [ids[:7]])
    page = dashboard()
    assert {job["id"] for job in page.json("/jobs?status=running")["jobs"]} == set(ids[:7])
    assert page.json(f"/jobs/{ids[0]}")["runs_on"] is None
    assert "No supervisor runs" in page.get("/").text
