"""Workers that are replaced on purpose: past a limit, past a job's deadline, or not at all."""

import time
from collections.abc import Callable

import pytest

from supervisor import exits
from tests.support.database import Database
from tests.support.jobs import enqueue, job, wait_done
from tests.support.service import Service

Start = Callable[..., Service]


def test_recycling_costs_no_job_and_happens_one_worker_at_a_time(db: Database, service: Start) -> None:
    """After `max_jobs` a worker drains and is replaced; what it held unstarted is untouched."""
    ids = enqueue(db, "t.sleep", {"seconds": 0.1}, count=800) + enqueue(db, "t.effect_sync", count=400)
    one = service(processes=3, max_jobs=60, concurrency=5)
    wait_done(db, 1200, 60)
    assert db.effects("done") == dict.fromkeys(ids, 1)
    assert db.rows("select id from supervisor.history where attempts <> 1 or crashes <> 0") == []
    assert one.stop() == exits.OK
    assert len(one.events("worker.recycling", reason="max_jobs")) >= 4
    assert {event["code"] for event in one.events("worker.exited")} == {exits.OK}
    under_way = 0
    for event in one.log:
        under_way += event["event"] == "worker.recycling"
        under_way -= event["event"] == "worker.exited"
        assert under_way <= 1, "two workers were recycled at once"


@pytest.mark.parametrize("kind", ["t.gil", "t.block"])
def test_a_job_that_ignores_its_timeout_is_killed_and_charged_alone(kind: str, db: Database, service: Start) -> None:
    """`kill_after` its timeout its worker is killed: a failed attempt for it, nothing for its neighbours."""
    [bad] = enqueue(db, kind, {"seconds": 60}, timeout=0.5, max_attempts=1, priority=1)
    beside = enqueue(db, "t.sleep", {"seconds": 6.5}, count=2)
    one = service(processes=1, concurrency=3)
    db.wait_for("select status from supervisor.jobs where id = %s", "dead", 25, [bad])
    dead = job(db, bad)
    assert (dead["attempts"], dead["crashes"], dead["reason"]) == (1, 0, "attempts")
    assert "timeout" in dead["last_error"]
    assert one.wait_event("job.killed")["job_id"] == bad
    wait_done(db, 2, 25)
    assert db.rows("select id, attempts, crashes from supervisor.history order by id") == [(x, 1, 0) for x in beside]
    assert one.stop() == exits.OK


def test_a_crash_loop_backs_off_and_the_service_stays(db: Database, service: Start) -> None:
    """Beyond the budget each restart waits longer, up to the cap; other jobs are done in between."""
    bad = enqueue(db, "t.exit", max_crashes=1, count=12)
    one = service(processes=1, concurrency=1, restart_budget=3, restart_backoff_s=0.05, restart_backoff_cap_s=0.4)
    db.wait_for("select count(*)::int from supervisor.dead_letter", 12, 30)
    delays = [event["restart_in_s"] for event in one.events("worker.exited")][:12]
    assert delays[:3] == [0, 0, 0]
    assert all(delay > 0 for delay in delays[3:])
    assert max(delays) <= 0.4 * 1.25 + 0.01
    enqueue(db, "t.effect", count=5)
    wait_done(db, 5)
    assert {row[0] for row in db.rows("select id from supervisor.dead_letter where crashes = 1")} == set(bad)
    assert one.stop() == exits.OK


@pytest.mark.parametrize("module", ["no_such_module", "tests.support.handlers,json.no_such"])
def test_handlers_that_do_not_import_stop_the_service_with_the_traceback(module: str, db: Database) -> None:
    """They will not import the next time either: an exit code of its own, once, not a loop of restarts."""
    began = time.monotonic()
    with Service(db, processes=4, handlers=module) as one:
        assert one.wait_exit(20) == exits.CONFIG
        assert time.monotonic() - began < 15
        [failed] = one.events("handlers.failed")
        assert "ModuleNotFoundError" in failed["traceback"]
        assert one.events("supervisor.ready") == []
