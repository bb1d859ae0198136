"""What a job queue must do, each on the real service: retry, bury, count, recover, stop, survive bad handlers."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import proc
from tests.support.database import Database
from tests.support.jobs import enqueue, enqueue_all, job, wait_done
from tests.support.service import Service

Start = Callable[..., Service]


def test_a_failed_job_is_retried_with_the_right_delay(db: Database, service: Start) -> None:
    """base * 2^attempts, give or take a half, measured by the database between the effects of the attempts."""
    ids = enqueue(db, "t.fail", {"times": 3}, count=20, max_attempts=5)
    service(processes=1, retry_base_s=0.2, retry_cap_s=0.9)
    wait_done(db, 20)

    gaps = db.rows(
        """select attempt, extract(epoch from at - lag(at) over (partition by job_id order by attempt))::float8
             from effects where job_id = any(%s)""",
        [ids],
    )
    for attempt, gap in gaps:
        if attempt > 1:
            nominal = min(0.9, 0.2 * 2 ** (attempt - 1))
            assert 0.5 * nominal - 0.01 <= gap <= 1.5 * nominal + 1.0, (attempt, gap)  # 1 s for a busy machine
    assert db.effects("failed") == dict.fromkeys(ids, 3)
    assert db.effects("done") == dict.fromkeys(ids, 1)
    second = sorted(gap for attempt, gap in gaps if attempt == 2)
    assert second[-1] - second[0] > 0.05, f"all waited alike, there is no jitter: {second}"


def test_a_job_is_dead_after_its_last_attempt_and_its_error_is_kept(db: Database, service: Start) -> None:
    [job_id] = enqueue(db, "t.fail", max_attempts=3)
    service(processes=1, retry_base_s=0.02)
    db.wait_for("select status from supervisor.jobs where id = %s", "dead", params=[job_id])

    dead = job(db, job_id)
    assert (dead["attempts"], dead["crashes"], dead["reason"]) == (3, 0, "attempts")
    assert f"RuntimeError: attempt 3 of job {job_id} fails as it was told" in dead["last_error"]
    assert "Traceback" in dead["last_error"]
    assert [entry["attempt"] for entry in dead["errors"]] == [1, 2, 3]
    assert db.effects() == {job_id: 3}


def test_eight_workers_handle_a_thousand_jobs_exactly_once_each(db: Database, service: Start) -> None:
    ids = enqueue(db, "t.effect", count=500) + enqueue(db, "t.effect_sync", count=500)
    service(processes=8)
    wait_done(db, 1000, deadline_s=60)
    # One that came up last may have found nothing left: more jobs until all eight have had some.
    while db.value("select count(distinct pid)::int from effects") < 8 and len(ids) < 20_000:
        ids += enqueue(db, "t.effect", count=1000)
        wait_done(db, len(ids), deadline_s=60)
    assert db.effects() == dict.fromkeys(ids, 1)
    assert db.value("select count(distinct pid)::int from effects") == 8
    assert db.statuses() == {"done": len(ids)}


def test_a_lease_that_passed_returns_its_job(db: Database, service: Start) -> None:
    """A supervisor and its workers vanish at once, as a machine does: another runs the job after the lease."""
    [job_id] = enqueue(db, "t.sleep", {"seconds": 600})
    lost = service(processes=1, lease_s=2)
    db.wait_for("select count(*)::int from effects where note = 'start'", 1)
    for process in lost.processes():
        proc.kill(process.pid)
    lost.kill()
    assert db.statuses() == {"running": 1}, "its lease holds for now"

    service(processes=1, lease_s=2, retry_base_s=0.05)
    db.wait_for("select count(*)::int from effects where note = 'start'", 2)
    again = job(db, job_id)
    assert (again["attempts"], again["crashes"]) == (1, 1), "the loss is a crash, not an attempt"
    gap = db.value("select extract(epoch from max(at) - min(at))::float8 from effects")
    assert gap >= 1.0, f"two runs overlapped inside the lease: {gap} s"


def test_a_service_stopped_mid_run_returns_the_unstarted_with_attempts_unspent(db: Database, service: Start) -> None:
    ids = enqueue(db, "t.sleep", {"seconds": 1.5}, count=40)
    before = {row[0]: row[1] for row in db.rows("select id, run_at from supervisor.job")}
    one = service(processes=2, concurrency=2, prefetch=8)
    db.wait_for("select count(*)::int from effects where note = 'start'", 4)
    assert one.stop() == 0

    started = db.effects("start")
    assert db.effects("done") == started, "what ran was finished"
    left = db.rows("select id, attempts, crashes, lease, run_at from supervisor.job order by id")
    assert {row[0] for row in left} == set(ids) - set(started)
    assert all(row[1:4] == (0, 0, None) for row in left), left
    assert all(before[row[0]] == row[4] for row in left), "they keep their place"
    assert db.statuses() == {"done": len(started), "queued": 40 - len(started)}


BAD: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("t.fail", {}, {"attempts": 2, "crashes": 0, "reason": "attempts", "text": "RuntimeError"}),
    ("t.raise_system_exit", {}, {"attempts": 2, "crashes": 0, "reason": "attempts", "text": "SystemExit: 3"}),
    ("t.raise_system_exit_sync", {}, {"attempts": 2, "crashes": 0, "reason": "attempts", "text": "SystemExit: 3"}),
    ("t.keyboard_interrupt", {}, {"attempts": 2, "crashes": 0, "reason": "attempts", "text": "KeyboardInterrupt"}),
    ("t.exit", {"code": 7}, {"attempts": 0, "crashes": 2, "reason": "crashes", "text": "exited with code 7"}),
    ("t.exit_sync", {"code": 0}, {"attempts": 0, "crashes": 2, "reason": "crashes", "text": "exited with code 0"}),
    # Exit codes that the service itself uses with a meaning: cut at the drain, cannot start, unknown.
    ("t.exit", {"code": 75}, {"attempts": 0, "crashes": 2, "reason": "crashes", "text": "75"}),
    ("t.exit", {"code": 78}, {"attempts": 0, "crashes": 2, "reason": "crashes", "text": "78"}),
    ("t.exit", {"code": 255}, {"attempts": 0, "crashes": 2, "reason": "crashes", "text": "255"}),
    ("t.segv", {}, {"attempts": 0, "crashes": 2, "reason": "crashes", "text": "SIGSEGV"}),
    ("t.segv_read", {}, {"attempts": 0, "crashes": 2, "reason": "crashes", "text": "SIGSEGV"}),
    ("t.segv_read_sync", {}, {"attempts": 0, "crashes": 2, "reason": "crashes", "text": "SIGSEGV"}),
]


@pytest.mark.parametrize(
    ("kind", "payload", "end"), BAD, ids=[f"{kind}{payload.get('code', '')}" for kind, payload, _ in BAD]
)
def test_a_bad_handler_is_charged_and_nobody_else_is(
    kind: str, payload: dict[str, Any], end: dict[str, Any], db: Database, service: Start
) -> None:
    """One that raises, exits or breaks its process, among many that do not: the service goes on."""
    good = enqueue(db, "t.effect", count=30) + enqueue(db, "t.sleep", {"seconds": 0.2}, count=10)
    [bad] = enqueue(db, kind, payload, max_attempts=2, max_crashes=2, priority=-1)
    good += enqueue(db, "t.effect_sync", count=30)
    one = service(processes=2, retry_base_s=0.02, restart_budget=1000)
    wait_done(db, len(good))
    db.wait_for("select status from supervisor.jobs where id = %s", "dead", params=[bad])

    dead = job(db, bad)
    assert {key: dead[key] for key in ("attempts", "crashes", "reason")} == {
        key: end[key] for key in ("attempts", "crashes", "reason")
    }
    assert end["text"] in dead["last_error"]
    charged = db.rows("select id, attempts, crashes from supervisor.history where attempts <> 1 or crashes <> 0")
    assert charged == [], "neighbours are not charged"
    assert set(db.effects("done")) == set(good)

    [last] = enqueue(db, "t.effect")
    wait_done(db, len(good) + 1)
    assert db.effects()[last] == 1
    assert one.alive
    assert one.stop() == 0
    if kind.startswith("t.segv"):
        assert "tests/support/handlers.py" in dead["last_error"], "it says where the handler was"
        assert all("Segmentation fault" in event["traceback"] for event in one.events("worker.exited", code=-11))
    said = one.events("worker.recovered", charged_job=bad)
    assert len(said) == dead["crashes"]


def test_a_job_that_cannot_even_be_started_fails_alone(db: Database, service: Start) -> None:
    """Headers that Python's json refuses once ended the worker's exchange: it lived on and took nothing more."""
    huge = "1" * 5000
    [bad] = enqueue(db, "t.effect", max_attempts=1)
    db.execute(f"update supervisor.job set headers = '{{\"n\": {huge}}}' where id = %s", [bad])
    good = enqueue_all(db, [{"kind": "t.effect"}] * 20)
    one = service(processes=1)
    wait_done(db, 20)
    db.wait_for("select status from supervisor.jobs where id = %s", "dead", params=[bad])
    error = db.value("select last_error from supervisor.jobs where id = %s", [bad])
    assert "ValueError" in error
    assert huge[:100] not in error
    assert db.effects() == dict.fromkeys(good, 1)
    assert one.stop(signal.SIGTERM) == 0
    assert one.events("worker.exited") == []


def test_a_suspect_of_a_kind_nobody_knows_does_not_keep_its_worker_to_itself(db: Database, service: Start) -> None:
    """It is tried alone, is put back, and the worker takes others again."""
    [strange] = enqueue(db, "no.such.kind")
    db.execute("update supervisor.job set priority = priority + 1000 where id = %s", [strange])
    one = service(processes=1)
    db.wait_for("select claims > 0 and lease is null from supervisor.job where id = %s", True, params=[strange])
    enqueue(db, "t.effect", count=5)
    wait_done(db, 5)
    assert one.stop() == 0
