"""Stopping: what runs is finished or put back, what waits is untouched, and nothing is left behind."""

import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from supervisor import exits
from tests.support import proc
from tests.support.database import Database
from tests.support.jobs import enqueue, enqueue_all, job, wait_done
from tests.support.service import Service
from tests.support.sizes import FULL, within
from tests.support.waiting import wait_until

Start = Callable[..., Service]
ROUNDS = 500 if FULL else 20
KILLED_DRAINS = 8 if FULL else 4


@pytest.mark.timeout(1800 if FULL else 300)
def test_a_stop_at_any_moment_loses_no_job_and_spends_no_attempt(
    db: Database, service: Start, report: Callable[[str], None]
) -> None:
    """B08: 200 tiny jobs, batches of 20, SIGTERM at a random moment of the first second, again and again."""
    rng = random.Random()
    left_queued = 0
    for number in range(ROUNDS):
        db.execute("truncate effects")
        db.execute("truncate supervisor.job, supervisor.history")
        enqueue(db, rng.choice(["t.effect", "t.effect_sync"]), count=200)
        one = Service(db, processes=2, concurrency=10, prefetch=10)
        with one:
            moment = rng.uniform(0.0, 1.0)
            if number % 2:
                one.wait_event("worker.ready")  # the first moments of claiming are the interesting ones
                moment = rng.uniform(0.0, 0.1)
            else:
                one.wait_event("supervisor.starting")
            time.sleep(moment)  # the moment of the stop is what is random
            if number % 3:
                one.send(signal.SIGTERM)
            else:
                os.killpg(one.parent_pid, signal.SIGTERM)
            assert one.wait_exit() == exits.OK, one.tail()
            statuses = db.statuses()
            assert set(statuses) <= {"done", "queued"}, statuses
            assert sum(statuses.values()) == 200
            effects = db.effects()
            assert len(effects) == statuses.get("done", 0)
            assert all(count == 1 for count in effects.values())
            changed = db.rows("select id, attempts, crashes from supervisor.job where attempts <> 0 or crashes <> 0")
            assert changed == [], "a job that never started has spent an attempt"
            assert db.value("select count(*)::int from supervisor.session where closed_at is null") == 0
        left_queued += bool(statuses.get("queued"))
    report(f"B08: {ROUNDS} stops, {left_queued} of them with jobs still queued")


@pytest.mark.timeout(240)
def test_workers_killed_while_they_drain_leave_nothing_running(db: Database, service: Start) -> None:
    """The last recoveries are waited for: a death in the middle of a stop is settled before the service is gone."""
    rng = random.Random()
    for _ in range(KILLED_DRAINS):
        db.execute("truncate effects")
        db.execute("truncate supervisor.job, supervisor.history")
        enqueue(db, "t.sleep", {"seconds": 0.5}, count=60, max_crashes=100)
        enqueue(db, "t.sleep_sync", {"seconds": 0.5}, count=60, max_crashes=100)
        one = service(processes=3, concurrency=5, prefetch=10)
        db.wait_for("select count(*)::int > 10 from effects where note = 'start'", True)
        pids = one.worker_pids()
        one.send(signal.SIGTERM)
        for pid in rng.sample(pids, rng.randint(1, 3)):
            time.sleep(rng.uniform(0.0, 0.2))  # the moment of the kill is what is random
            proc.kill(pid)
        assert one.wait_exit() == exits.OK
        statuses = db.statuses()
        assert set(statuses) <= {"done", "queued"}, statuses
        assert sum(statuses.values()) == 120
        assert db.rows("select id from supervisor.job where attempts <> 0") == []
        charged = [event["charged_job"] for event in one.events("worker.recovered") if event["charged_job"] is not None]
        assert db.value("select coalesce(sum(crashes), 0)::int from supervisor.jobs") == len(charged)
        assert db.value("select count(*)::int from supervisor.session where closed_at is null") == 0


def test_what_ends_during_the_drain_is_recorded(db: Database, service: Start) -> None:
    """B09: 20 jobs that end at random times of a drain are done when the process has exited; none runs again."""
    rng = random.Random()
    ids = enqueue_all(
        db,
        [
            {"kind": rng.choice(["t.sleep", "t.sleep_sync"]), "payload": {"seconds": rng.uniform(3.0, 6.0)}}
            for _ in range(20)
        ],
    )
    one = service(processes=2, concurrency=10, health_port="auto")
    db.wait_for("select count(*)::int from effects where note = 'start'", 20)
    assert one.stop() == exits.OK
    assert db.statuses() == {"done": 20}
    assert sum(int(event["finished"]) for event in one.events("worker.drained")) == 20
    [marker] = enqueue(db, "t.effect")
    again = service(processes=2, concurrency=10)
    wait_done(db, 21)
    assert again.stop() == exits.OK
    assert db.effects("done") == dict.fromkeys([*ids, marker], 1)


def test_the_metric_says_what_was_completed(db: Database, service: Start) -> None:
    """B09: the counter of done jobs includes those that ended during the drain."""
    enqueue(db, "t.sleep", {"seconds": 1.0}, count=20)
    one = service(processes=2, concurrency=10, health_port="auto")
    db.wait_for("select count(*)::int from effects where note = 'start'", 20)
    one.send(signal.SIGUSR1)
    one.wait_event("supervisor.drained")
    assert db.statuses() == {"done": 20}
    name = next(line for line in one.get("/metrics")[1].splitlines() if "jobs" in line and 'outcome="done"' in line)
    assert one.metric(name.partition("{")[0], outcome="done") == 20
    assert one.stop() == exits.OK


@pytest.mark.parametrize("kind", ["t.stubborn", "t.stubborn_sync"])
def test_at_the_deadline_what_does_not_stop_is_queued_again_uncharged(kind: str, db: Database, service: Start) -> None:
    """The exit code says that something was cut. A handler that ignores cancellation cannot hold up the exit."""
    ids = enqueue(db, kind, {"seconds": 60}, count=3)
    one = service(processes=1, concurrency=2, drain_timeout_s=1)
    db.wait_for("select count(*)::int from effects where note = 'start'", 2)
    began = time.monotonic()
    assert one.stop() == exits.CUT
    took = time.monotonic() - began
    assert 0.9 < took < 8, took
    rows = db.rows("select id, lease, attempts, crashes, priority > 500 from supervisor.job order by id")
    assert rows == [(job_id, None, 0, 0, False) for job_id in ids]
    assert one.events("worker.recovered", interrupted=2) or one.events("worker.drained", interrupted=2)
    assert db.statuses() == {"queued": 3}


@pytest.mark.parametrize("kind", ["t.block", "t.gil"])
def test_at_the_deadline_a_worker_that_does_not_even_hear_is_killed(kind: str, db: Database, service: Start) -> None:
    """Its loop does not turn, so only the parent can end it; what it ran is not charged, what it held untouched."""
    [busy] = enqueue(db, kind, {"seconds": 60}, priority=-1)
    waiting = enqueue(db, "t.effect", count=5)
    one = service(processes=1, concurrency=1, drain_timeout_s=1)
    db.wait_for("select count(*)::int from effects where note = 'start'", 1)
    began = time.monotonic()
    assert one.stop() == exits.CUT
    assert time.monotonic() - began < 8
    rows = db.rows("select id, lease, attempts, crashes, priority > 500 from supervisor.job order by id")
    assert rows == [(job_id, None, 0, 0, False) for job_id in [busy, *waiting]]
    assert len(one.events("worker.killed")) == 1


def test_a_handler_that_stops_when_cancelled_is_queued_again_uncharged(db: Database, service: Start) -> None:
    """The ordinary case: an async handler is cancelled at the deadline and its job keeps its place."""
    [job_id] = enqueue(db, "t.sleep", {"seconds": 60})
    before = job(db, job_id)["run_at"]
    one = service(processes=1, drain_timeout_s=0.5)
    db.wait_for("select count(*)::int from effects where note = 'start'", 1)
    assert one.stop() == exits.CUT
    after = job(db, job_id)
    assert (after["status"], after["attempts"], after["crashes"], after["run_at"]) == ("queued", 0, 0, before)
    assert one.events("worker.drained", interrupted=1)


def test_a_second_sigterm_moves_the_deadline_to_now(db: Database, service: Start) -> None:
    [job_id] = enqueue(db, "t.sleep", {"seconds": 60})
    one = service(processes=1, drain_timeout_s=50)
    db.wait_for("select count(*)::int from effects where note = 'start'", 1)
    one.send(signal.SIGTERM)
    one.wait_event("worker.draining")
    assert one.alive
    began = time.monotonic()
    assert one.stop(signal.SIGTERM) == exits.CUT
    assert time.monotonic() - began < 8
    assert one.events("supervisor.hurried")
    assert (job(db, job_id)["status"], job(db, job_id)["attempts"]) == ("queued", 0)


def test_a_worker_that_has_lived_long_still_gives_its_jobs_time(db: Database, service: Start) -> None:
    """A SIGTERM to the group once counted the drain from the worker's birth: old workers cut their jobs at once."""
    one = service(processes=1, drain_timeout_s=3)
    born = time.monotonic()
    wait_until(lambda: time.monotonic() - born > 3.5, 10, "the worker is older than the drain timeout")
    enqueue(db, "t.sleep", {"seconds": 1.0})
    db.wait_for("select count(*)::int from effects where note = 'start'", 1)
    os.killpg(one.parent_pid, signal.SIGTERM)
    assert one.wait_exit() == exits.OK
    assert db.statuses() == {"done": 1}


def test_sigusr1_drains_and_stays_until_sigterm(db: Database, service: Start) -> None:
    """What a preStop hook waits for: drained, not ready, no job taken any more, still there."""
    enqueue(db, "t.sleep", {"seconds": 0.5}, count=4)
    one = service(processes=2, concurrency=2, health_port="auto")
    db.wait_for("select count(*)::int from effects where note = 'start'", 4)
    assert one.get("/readyz")[0] == 200
    one.send(signal.SIGUSR1)
    one.wait_event("supervisor.draining")
    assert one.get("/readyz")[0] == 503
    one.wait_event("supervisor.drained")
    assert db.statuses() == {"done": 4}
    [late] = enqueue(db, "t.effect")
    assert one.worker_pids() == []
    assert one.alive
    assert one.get("/livez")[0] == 200
    assert one.stop() == exits.OK
    assert job(db, late)["status"] == "queued"


def test_a_hangup_does_not_end_a_service_without_terminal(db: Database, service: Start) -> None:
    """A script that wishes a reload, or a logged-out shell, must not cost running jobs."""
    one = service(processes=1)
    os.killpg(one.parent_pid, signal.SIGHUP)
    one.wait_event("hangup.ignored")
    enqueue(db, "t.effect")
    wait_done(db, 1)
    assert one.stop() == exits.OK
    assert one.events("worker.exited") == []


def test_workers_of_a_killed_parent_finish_or_release_and_leave(db: Database, service: Start) -> None:
    """Short jobs are finished, a long one is put back at the drain limit, the unstarted at once; a second
    supervisor takes the rest."""
    long = enqueue(db, "t.sleep", {"seconds": 600}, count=1, priority=-2)
    short = enqueue(db, "t.sleep", {"seconds": 1.5}, count=3, priority=-1)
    waiting = enqueue(db, "t.effect", count=6)
    one = service(processes=1, concurrency=4, prefetch=10, drain_timeout_s=4, lease_s=3)
    db.wait_for("select count(*)::int from effects where note = 'start'", 4)
    began = time.monotonic()
    one.kill()
    db.wait_for("select count(*)::int from supervisor.job where lease is null", len(waiting), 3)
    wait_done(db, len(short), 10)
    wait_until(lambda: not one.processes(), 12, "the workers have left")
    assert time.monotonic() - began < 4 + within(5, busy_s=15)
    assert set(db.effects("done")) == set(short)

    other = service(processes=1, lease_s=3)
    wait_done(db, len(short) + len(waiting), 15)
    db.wait_for("select count(*)::int from effects where note = 'start' and job_id = %s", 2, 15, long)
    again = job(db, long[0])
    assert (again["attempts"], again["crashes"]) == (1, 0), "its parent's death is not its fault"
    assert set(db.effects("done")) == {*short, *waiting}
    assert all(count == 1 for count in db.effects("done").values())
    other.send(signal.SIGTERM)
    other.wait_event("worker.draining")
    assert other.stop() == exits.CUT


def test_a_stopped_worker_of_a_killed_parent_loses_its_lease(db: Database, service: Start) -> None:
    """It cannot renew: after the lease another supervisor runs its job, and its own late result changes nothing."""
    [job_id] = enqueue(db, "t.sleep", {"seconds": 2})
    one = service(processes=1, lease_s=2)
    [pid] = one.worker_pids()
    db.wait_for("select count(*)::int from effects where note = 'start'", 1)
    os.kill(pid, signal.SIGSTOP)
    one.kill()
    assert db.effects("done") == {}
    service(processes=1, lease_s=2, retry_base_s=0.01)
    wait_done(db, 1, 20)
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not one.processes(), 15, "the stopped worker has left")
    assert db.rows("select id, attempts, crashes from supervisor.history") == [(job_id, 1, 1)]


def test_a_start_with_less_grace_than_a_drain_needs_says_so(service: Start) -> None:
    """B07: where the platform tells its patience, a drain limit above it is said at the start."""
    one = service(drain_timeout_s=25, termination_grace_s=30)
    assert "kills after 30 s" in one.wait_event("grace.short")["reason"]
    one.stop()
    enough = service(drain_timeout_s=5, termination_grace_s=30)
    assert not enough.events("grace.short")


@pytest.mark.parametrize("running", [True, *([False] if FULL else [])], ids=lambda more: "cut" if more else "all_ended")
def test_an_orphan_that_could_not_store_a_result_lets_its_lease_pass(
    db: Database, service: Start, running: bool
) -> None:
    """Its parent was killed and its results cannot be stored until it must leave. It once ended its session with
    these results in hand: jobs that had run were queued as if they never had, and ran again at once."""
    lease_s = 3.0
    short = enqueue(db, "t.sleep", {"seconds": 0.5}, count=2)
    long = enqueue(db, "t.sleep_sync", {"seconds": 600}, count=int(running))
    one = service(processes=1, concurrency=4, drain_timeout_s=1, lease_s=lease_s, statement_timeout_s=60)
    db.wait_for("select count(*)::int from effects where note = 'start'", len(short) + len(long))
    gate = db.connect(autocommit=False)
    gate.execute("lock table supervisor.history in exclusive mode")  # acks wait here, nothing else does
    one.kill()
    db.wait_for("select count(*)::int from effects where note = 'done'", len(short))
    one.wait_event("drain.unstored", 10, results=len(short))
    wait_until(lambda: not one.processes(), 10, "the orphan has left")
    db.terminate_sessions("pg-supervisor worker%")  # else the server would store them when the lock is gone
    gate.rollback()
    assert db.rows("select closed_as from supervisor.session") == [(None,)], "it said that all is accounted for"
    passes = db.value("select max(expires_at) from supervisor.session")

    other = service(processes=1, concurrency=4, lease_s=lease_s, retry_base_s=0.01)
    db.execute("update supervisor.job set payload = '{\"seconds\": 0}'")
    wait_done(db, len(short) + len(long), 20)
    again = "select min(at) from effects where note = 'start' and at > %s::timestamptz - interval '1 hour' and pid = %s"
    assert db.value(again, [passes, *other.worker_pids()]) >= passes, "run again before the lease had passed"
    assert db.rows("select distinct attempts, crashes from supervisor.history") == [(1, 1)]
    assert other.stop() == exits.OK


def test_an_orphan_whose_handlers_run_on_lets_its_lease_pass(db: Database, service: Start) -> None:
    """Its parent was killed, and two handlers do not stop when told. It once ended its session with them running:
    until the answer came, for a second if it was lost, others could run these jobs beside them."""
    lease_s = 3.0
    short = enqueue(db, "t.sleep", {"seconds": 0.5}, count=2)
    kinds = ("t.sleep_sync", "t.stubborn")
    long = enqueue_all(db, [{"kind": kind, "payload": {"seconds": 600}} for kind in kinds])
    one = service(processes=1, concurrency=4, drain_timeout_s=1, lease_s=lease_s)
    db.wait_for("select count(*)::int from effects where note = 'start'", len(short) + len(long))
    session = db.value("select distinct lease from supervisor.job")
    other = service(processes=1, concurrency=4, lease_s=lease_s, retry_base_s=0.01)  # takes what it can get at once
    db.execute("update supervisor.job set payload = '{\"seconds\": 0}'")
    one.kill()
    wait_until(lambda: not one.processes(), 10, "the orphan has left")
    passes = db.value("select expires_at from supervisor.session where id = %s and closed_at is null", [session])
    assert passes, "it ended its session"
    wait_done(db, len(short) + len(long), 20)
    again = db.value("select min(at) from effects where note = 'start' and pid = any(%s)", [other.worker_pids()])
    assert again >= passes, "run again before the lease had passed"
    ends = "select id, attempts, crashes from supervisor.history order by id"
    assert db.rows(ends) == [*((id_, 1, 0) for id_ in short), *((id_, 1, 1) for id_ in long)]
    assert other.stop() == exits.OK
