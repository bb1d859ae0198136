"""Cancelling jobs that run, by ids and by filter; and by force, where handlers do not stop."""

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from supervisor import cancel_jobs
from tests.e2e.test_cli import Cli
from tests.support.database import Database
from tests.support.jobs import enqueue, enqueue_all, job
from tests.support.service import Service
from tests.support.sizes import within

Start = Callable[..., Service]

MANY = 10_000
GRACE_S = 1.0


@pytest.fixture
def cli(db: Database, tmp_path: Path) -> Cli:
    return Cli(tmp_path, SUPERVISOR_DATABASE_URL=db.conninfo)


def test_force_ends_what_does_not_stop_within_grace_and_leaves_its_neighbours_alone(
    db: Database, service: Start
) -> None:
    """A plain handler that never looks: its worker is killed, the job ends cancelled, and neither it nor what ran
    beside it is charged anything."""
    one = service(processes=1, concurrency=5)
    [deaf] = enqueue(db, "t.stubborn_sync", {"seconds": 60})
    neighbours = enqueue(db, "t.sleep", {"seconds": 3.0}, count=2)
    db.wait_for("select count(*)::int from effects where note = 'start'", 3)
    [pid] = one.worker_pids()
    began = time.monotonic()
    assert cancel_jobs(db.connect(), deaf, force=True, grace=GRACE_S) == (0, 1)
    db.wait_for("select status from supervisor.jobs where id = %s", "cancelled", params=[deaf])
    took = time.monotonic() - began
    assert GRACE_S <= took < GRACE_S + within(1, busy_s=10), f"cancelled after {took:.2f} s"

    row = job(db, deaf)
    assert (row["reason"], row["crashes"]) == ("operator", 0)
    assert "cancelled: did not stop when told to" in row["last_error"]
    db.wait_for("select count(*)::int from supervisor.history", 2)
    for other in neighbours:
        row = job(db, other)
        assert (row["status"], row["attempts"], row["crashes"], row["suspect"]) == ("done", 1, 0, False)
    assert one.wait_event("worker.exited", pid=pid)["caused"] == "cancel"
    assert one.events("job.killed", job_id=deaf)
    assert [event["charged_job"] for event in one.events("worker.recovered")] == [None]
    assert one.wait_workers(1) != [pid]


def test_force_kills_nobody_when_the_handler_stops_in_time(db: Database, service: Start) -> None:
    one = service(processes=1, concurrency=5)
    [polite, stays] = [*enqueue(db, "t.sleep", {"seconds": 60}), *enqueue(db, "t.sleep", {"seconds": 1.5})]
    db.wait_for("select count(*)::int from effects where note = 'start'", 2)
    [pid] = one.worker_pids()
    cancel_jobs(db.connect(), polite, force=True, grace=0.5)
    db.wait_for("select status from supervisor.jobs where id = %s", "cancelled", params=[polite])
    db.wait_for("select status from supervisor.jobs where id = %s", "done", params=[stays])
    assert one.worker_pids() == [pid]
    assert db.effects("start")[stays] == 1


def test_without_force_a_deaf_handler_runs_to_its_end(db: Database, service: Start) -> None:
    one = service(processes=1, concurrency=5)
    [deaf] = enqueue(db, "t.stubborn_sync", {"seconds": 1.5})
    db.wait_for("select count(*)::int from effects where note = 'start'", 1)
    assert cancel_jobs(db.connect(), deaf) == (0, 1)
    db.wait_for("select status in ('done', 'cancelled') from supervisor.jobs where id = %s", True, params=[deaf])
    assert db.effects("done") == {deaf: 1}
    assert one.events("worker.exited") == []


def test_a_cancel_that_nobody_heard_of_is_found(db: Database, service: Start) -> None:
    """Its notification was lost: while none arrive, supervisors ask, and force is kept too."""
    one = service(processes=1, concurrency=5, wake="false")
    [deaf] = enqueue(db, "t.stubborn_sync", {"seconds": 60})
    [polite] = enqueue(db, "t.sleep", {"seconds": 60})
    db.wait_for("select count(*)::int from effects where note = 'start'", 2)
    cancel_jobs(db.connect(), [deaf, polite], force=True, grace=GRACE_S)
    db.wait_for("select count(*)::int from supervisor.jobs where status = 'cancelled'", 2)
    assert one.events("worker.exited", caused="cancel")


def test_what_was_claimed_and_has_not_started_never_does(db: Database, service: Start) -> None:
    service(processes=1, concurrency=1, prefetch=10)
    enqueue(db, "t.sleep", {"seconds": 1.0})
    waiting = enqueue(db, "t.effect", count=5)
    db.wait_for("select count(*)::int from supervisor.jobs where status = 'running'", 6)
    assert cancel_jobs(db.connect(), waiting) == (0, 5)
    db.wait_for("select count(*)::int from supervisor.jobs where status = 'cancelled'", 5, deadline_s=1.0)
    db.wait_for("select count(*)::int from supervisor.history", 1)
    assert db.effects("done").keys().isdisjoint(waiting)


@pytest.mark.timeout(300)
def test_ten_thousand_by_filter_queued_and_running(cli: Cli, db: Database, service: Start) -> None:
    """By kind, across statuses: in batches, counted before and after, and nothing else is touched."""
    one = service(processes=2, concurrency=10)
    others = enqueue_all(db, [{"kind": "t.noop", "run_at": "2999-01-01T00:00:00Z"}] * 100)
    running = enqueue(db, "t.sleep", {"seconds": 120}, count=20)
    db.wait_for("select count(*)::int from effects where note = 'start'", 20)
    queued = enqueue(db, "t.sleep", {"seconds": 120}, count=MANY - 20, queue="default")

    would = cli("jobs", "cancel", "--kind", "t.sleep", "--dry-run", "--json").document
    assert (would["jobs"], would["more"]) == (MANY, False)
    assert would["first"] == running[:5]
    assert db.statuses().keys() == {"queued", "running"}, "nothing was done"
    assert sum(db.statuses().values()) == MANY + 100
    cli("jobs", "cancel", "--kind", "t.sleep").refused(2, "10,000 jobs", "--yes")

    began = time.monotonic()
    done = cli("jobs", "cancel", "--kind", "t.sleep", "--yes", "--json").document
    took = time.monotonic() - began
    assert (done["cancelled"] + done["asked"], done["missing"]) == (MANY, [])
    assert 20 <= done["asked"] <= 60, "the running ones, and what was claimed ahead"
    db.wait_for("select count(*)::int from supervisor.jobs where status = 'cancelled'", MANY)
    assert db.statuses() == {"queued": 100, "cancelled": MANY}
    assert db.effects("done") == {}
    assert took < 60
    assert one.events("worker.exited") == []

    back = cli("jobs", "retry", "--status", "cancelled", "--kind", "t.sleep", "--yes", "--json").document
    assert back["retried"] == MANY
    assert set(db.value("select array_agg(id) from supervisor.jobs where kind = 't.noop'")) == set(others)
    conn = db.connect()
    assert sum(cancel_jobs(conn, kind="t.sleep", dry_run=True)) == MANY
    assert sum(cancel_jobs(conn, kind="t.sleep")) == MANY
    assert set(queued).isdisjoint(db.effects("done"))


def test_a_filter_names_by_age_and_by_key(cli: Cli, db: Database) -> None:
    [old, young] = [*enqueue(db, "k"), *enqueue(db, "k")]
    db.execute("update supervisor.job set created_at = created_at - interval '2 hours' where id = %s", [old])
    keyed = enqueue(db, "k", unique_key="u")
    ordered = enqueue(db, "k", ordering_key="o")
    limited = enqueue(db, "k", concurrency_key="c", concurrency_limit=1)
    conn = db.connect()
    assert cancel_jobs(conn, older_than=timedelta(hours=1), dry_run=True) == (1, 0)
    assert cli("jobs", "cancel", "--older-than", "1h", "-y", "--json").document["cancelled"] == 1
    assert job(db, old)["status"] == "cancelled"
    for key, ids in (("u", keyed), ("o", ordered), ("c", limited)):
        assert cli("jobs", "cancel", "--key", key, "-y", "--json").document["cancelled"] == 1
        assert job(db, ids[0])["status"] == "cancelled"
    assert job(db, young)["status"] == "queued"
    assert cancel_jobs(conn, queue="nowhere") == (0, 0)
    cli("jobs", "cancel", "5", "--grace", "1s").refused(2, "--grace", "needs --force")
    cli("jobs", "cancel", "5", "--dry-run").refused(2, "--dry-run", "for filters")
    cli("jobs", "cancel", "--older-than", "soon").refused(2, "--older-than")


def test_reschedule_by_filter(cli: Cli, db: Database) -> None:
    later = enqueue_all(db, [{"kind": "k", "run_at": "2999-01-01T00:00:00Z"}] * 30)
    [other] = enqueue(db, "other", run_at="2999-01-01T00:00:00Z")
    assert cli("jobs", "reschedule", "--kind", "k", "--dry-run", "--json").document["jobs"] == 30
    assert "30 given another time" in cli("jobs", "reschedule", "--kind", "k", "--in", "1h", "--yes").out
    soon = "run_at between now() + interval '59 min' and now() + interval '1 hour'"
    assert db.value(f"select array_agg(id order by id) from supervisor.job where {soon}") == later
    assert job(db, other)["run_at"].startswith("2999")
    cli("jobs", "reschedule").refused(2, "filter")
