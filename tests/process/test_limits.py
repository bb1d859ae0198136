"""Limits on a worker: what it may grow to, how long it lives, how long its jobs may take, how long they may wait."""

import time
from collections import Counter
from collections.abc import Callable

import pytest

from supervisor import exits
from supervisor.parent.limits import senseless
from supervisor.settings import Settings
from tests.support import proc
from tests.support.database import Database
from tests.support.jobs import enqueue, job, wait_done
from tests.support.service import Service
from tests.support.sizes import FULL

Start = Callable[..., Service]

LEAKING = 5_000 if FULL else 300
MAX_RSS_MB = 100 if FULL else 25
DATA_MB = 300 if FULL else 150  # as in fat_handlers
CONCURRENCY = 2


@pytest.mark.timeout(600)
def test_data_loaded_at_import_does_not_count_and_a_leak_does(db: Database, service: Start) -> None:
    """B10: a job leaks 1 MB per run: its worker is replaced after about `max_rss_mb` jobs, drained first, and never
    at birth though it is far beyond the limit then. No job is lost or run twice; the tree's memory stays flat."""
    ids = enqueue(db, "t.leak", count=LEAKING)
    one = service(
        handlers="tests.support.fat_handlers",
        processes=2, concurrency=CONCURRENCY, prefetch=2, max_rss_mb=MAX_RSS_MB, lease_s=5,
    )  # fmt: skip
    most_mb = 0.0
    while db.value("select count(*)::int from supervisor.history") < LEAKING:
        assert one.alive
        most_mb = max(most_mb, _own_mb(one))
        time.sleep(0.2)
    assert db.effects("done") == dict.fromkeys(ids, 1)
    assert db.rows("select id from supervisor.history where attempts <> 1 or crashes <> 0") == []

    recycled = one.events("worker.recycling")
    assert {event["reason"] for event in recycled} == {"max_rss"}
    assert len(recycled) >= LEAKING // MAX_RSS_MB // 4
    ran: Counter[int] = Counter(dict(db.rows("select pid, count(*)::int from effects group by pid")))
    gone = {event["pid"] for event in recycled}
    assert min(ran[pid] for pid in gone) >= MAX_RSS_MB // 2, "replaced early: the shared data was counted"
    # Looked at once a second, and one at a time: the other leaks on while one drains.
    assert max(ran[pid] for pid in gone) <= MAX_RSS_MB + 100
    assert most_mb < 2 * (MAX_RSS_MB + 100) + 150, "memory of the whole tree without the shared data"
    assert {event["code"] for event in one.events("worker.exited")} == {exits.OK}, "each has drained"
    assert all(event["grown_mb"] > MAX_RSS_MB for event in recycled)
    assert all(event["birth_mb"] > DATA_MB > MAX_RSS_MB for event in one.events("worker.ready"))
    assert one.events("limits.odd") == []
    assert one.stop() == exits.OK


def test_max_age_replaces_workers_one_at_a_time_and_not_in_step(db: Database, service: Start) -> None:
    """Workers are born together; with jitter they do not die together, and each job is run once all the while."""
    ids = enqueue(db, "t.sleep", {"seconds": 0.05}, count=400)
    one = service(processes=3, concurrency=2, prefetch=2, max_age_s=2.0)
    assert len(one.events("limits.odd")) == 1, "an age of two seconds makes no sense outside of a test"
    one.wait_event("worker.recycling", 20, count=5, reason="max_age")
    wait_done(db, 400, 40)
    assert db.effects("done") == dict.fromkeys(ids, 1)
    assert db.rows("select id from supervisor.history where attempts <> 1 or crashes <> 0") == []
    ages = [event["age_s"] for event in one.events("worker.recycling")]
    assert min(ages) >= 2.0 * 0.9 - 0.1
    assert len(set(ages[:3])) > 1, "all at the same age"
    under_way = 0
    for event in one.log:
        under_way += event["event"] == "worker.recycling"
        under_way -= event["event"] == "worker.exited"
        assert under_way <= 1, "two workers were replaced at once"
    assert one.stop() == exits.OK


def test_handlers_that_keep_every_thread_are_named(db: Database, service: Start) -> None:
    """Long jobs take all slots while others wait in the backlog: one warning with their kind, and a metric."""
    enqueue(db, "t.sleep_sync", {"seconds": 8.0}, count=2, priority=-1)
    enqueue(db, "t.effect", count=20)
    one = service(processes=1, concurrency=2, prefetch=4, health_port="auto")
    said = one.wait_event("worker.starved", 15)
    assert said["kinds"] == ["t.sleep_sync"]
    assert len(said["job_ids"]) == 2
    assert one.metric("supervisor_errors_total", where="starved") == 1
    wait_done(db, 22, 20)
    one.wait_event("worker.fed", 5)
    assert len(one.events("worker.starved")) == 1
    assert one.stop() == exits.OK


def test_full_slots_with_nothing_waiting_are_no_reason_to_warn(db: Database, service: Start) -> None:
    enqueue(db, "t.sleep_sync", {"seconds": 7.0}, count=2)
    one = service(processes=1, concurrency=2)
    wait_done(db, 2, 20)
    assert one.events("worker.starved") == []
    assert one.stop() == exits.OK


def test_limits_that_make_no_sense_are_told_with_their_numbers() -> None:
    """B10: before the kernel kills a worker that its limit would have replaced."""
    gib = 2**30
    settings = Settings(processes=4, concurrency=10, max_rss_mb=400)
    [said] = senseless(settings, birth_rss=gib, memory=2 * gib)
    assert "SUPERVISOR_MAX_RSS_MB=400" in said
    assert "2624 MiB" in said
    assert "2048 MiB" in said
    assert senseless(settings, birth_rss=gib, memory=4 * gib) == []
    assert senseless(Settings(max_jobs=5, concurrency=10), birth_rss=gib, memory=gib)
    assert senseless(Settings(max_age_s=1), birth_rss=gib, memory=gib)
    assert senseless(Settings(), birth_rss=gib, memory=1) == []


def _own_mb(one: Service) -> float:
    """What the workers have beyond the data that they share."""
    workers = [found for pid in one.worker_pids() if (found := proc.look(pid))]
    return sum(max(0.0, worker.rss_bytes / 2**20 - DATA_MB) for worker in workers)


def test_a_worker_that_cannot_hear_is_replaced_by_force(db: Database, service: Start) -> None:
    """A handler that holds the interpreter for ever once kept its worker, what that held, and the replacement of all
    others waiting for ever. It is named, ended at its deadline, and its job is charged nothing."""
    [busy] = enqueue(db, "t.gil", {"seconds": 600}, priority=-1)
    waiting = enqueue(db, "t.effect", count=5)
    one = service(processes=2, concurrency=1, prefetch=0, max_age_s=2, drain_timeout_s=1, health_port="auto")
    killed = one.wait_event("worker.killed", 15)
    assert (killed["kinds"], killed["job_ids"]) == (["t.gil"], [busy])
    wait_done(db, len(waiting), 10)
    other = {0: 1, 1: 0}[int(killed["slot"])]
    one.wait_event("worker.recycling", 15, slot=other)
    assert one.metric("supervisor_errors_total", where="recycle") >= 1
    assert job(db, busy)["crashes"] == 0
    assert job(db, busy)["attempts"] <= 1, "only of the run that is under way, if one is"
    assert one.stop() in (exits.OK, exits.CUT)  # by whether the job runs at that moment
