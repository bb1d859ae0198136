"""Wake-ups: a stopped worker stalls nobody, and jobs start when they are due."""

import os
import signal
import statistics
import time
from collections.abc import Callable

import pytest

from supervisor import exits
from tests.support.database import Database
from tests.support.health import HealthWatch
from tests.support.jobs import enqueue, wait_done
from tests.support.service import Service
from tests.support.sizes import FULL, within

Start = Callable[..., Service]
WAKES = 200_000 if FULL else 20_000


# A machine that runs other tests besides may make a process wait; the stated limits hold at full size.
ANSWERS_WITHIN_S, BACK_WITHIN_S = (1.0, 1.0) if FULL else (3.0, 10.0)
PROMPT_S = within(0.25, busy_s=2.0)  # polls are a minute apart


@pytest.mark.timeout(900 if FULL else 180)
def test_a_stopped_worker_stalls_neither_the_parent_nor_its_siblings(
    db: Database, service: Start, report: Callable[[str], None]
) -> None:
    """B03: one of 4 workers is stopped while 20,000 small transactions notify; then it goes on."""
    one = service(processes=4, concurrency=10, prefetch=10, health_port="auto")
    stopped = one.workers()[1]
    os.kill(stopped, signal.SIGSTOP)
    began = time.monotonic()
    with HealthWatch(one.health_port) as watch, db.connect() as conn:
        for _ in range(WAKES):
            conn.execute("select supervisor.enqueue('t.noop')")
        enqueued_s = time.monotonic() - began
        # The stopped one may hold what it claimed before; nothing else may wait for it.
        db.wait_for("select count(*)::int <= 20 from supervisor.job", True, 120)
        drained_s = time.monotonic() - began

        # More than three workers have hands for: the fourth takes of it as soon as it can.
        long = enqueue(db, "t.sleep", {"seconds": 0.2}, count=1000)
        goes_on = db.value("select clock_timestamp()")
        os.kill(stopped, signal.SIGCONT)
        db.wait_for("select count(*) > 0 from effects where pid = %s", True, 20, [stopped])
    back_s = db.value("select extract(epoch from min(at) - %s)::float8 from effects where pid = %s", [goes_on, stopped])
    wait_done(db, WAKES + len(long), 60)
    report(
        f"B03: {WAKES} wake-ups in {enqueued_s:.1f} s, done by three workers after {drained_s:.1f} s;"
        f" slowest answer of the health page {watch.slowest_s:.2f} s;"
        f" the stopped worker ran a job {back_s:.2f} s after SIGCONT"
    )
    assert watch.bad == []
    assert one.alive
    assert one.events("worker.exited") == []
    assert watch.slowest_s < ANSWERS_WITHIN_S
    assert back_s < BACK_WITHIN_S
    assert drained_s < 1.25 * enqueued_s + within(2, busy_s=10), (
        "three workers did not keep up with what one client adds"
    )
    assert one.stop() == exits.OK


def test_a_delayed_job_starts_when_it_is_due(db: Database, service: Start, report: Callable[[str], None]) -> None:
    """On an idle system, by the timer and not by the poll: 50 ms are promised, a busy machine is allowed more."""
    one = service(processes=2, poll_every_s=60)
    warm(db)
    late = []
    for number in range(20):
        [job_id] = enqueue(db, "t.effect", delay=0.2 + 0.02 * number)
        run_at = db.value("select extract(epoch from run_at)::float8 from supervisor.job where id = %s", [job_id])
        db.wait_for("select count(*)::int from effects where job_id = %s", 1, 10, [job_id])
        late.append(started(db, job_id) - run_at)
    report(f"delayed job: starts {shown(late)} after run_at")
    assert min(late) >= 0.0, "a job started before it was due"
    assert statistics.median(late) < PROMPT_S
    assert one.stop() == exits.OK


def test_a_retry_on_an_idle_system_starts_when_it_is_due(
    db: Database, service: Start, report: Callable[[str], None]
) -> None:
    """Nobody is notified of a retry: once it waited for the next poll."""
    one = service(processes=2, poll_every_s=60)
    warm(db)
    late = []
    for _ in range(8):
        [job_id] = enqueue(db, "t.retry", {"after": 0.3})
        db.wait_for("select count(*)::int from effects where job_id = %s and note = 'retry'", 1, 10, [job_id])
        db.wait_for("select count(*)::int from effects where job_id = %s and note = 'done'", 1, 10, [job_id])
        gap = db.value("select extract(epoch from max(at) - min(at))::float8 from effects where job_id = %s", [job_id])
        late.append(gap - 0.3)
    report(f"retry: starts {shown(late)} after its delay")
    assert statistics.median(late) < PROMPT_S
    assert one.stop() == exits.OK


def test_a_job_whose_worker_crashed_is_retried_when_it_is_due(db: Database, service: Start) -> None:
    """The parent puts it back with a delay, and wakes a worker then, long before the next poll."""
    [job_id] = enqueue(db, "t.exit", max_crashes=2)
    one = service(processes=1, poll_every_s=60, retry_base_s=0.1)
    db.wait_for("select status from supervisor.jobs where id = %s", "dead", 10, [job_id])
    assert one.stop() == exits.OK


def test_a_notified_job_starts_at_once(db: Database, service: Start, report: Callable[[str], None]) -> None:
    one = service(processes=2, poll_every_s=60)
    warm(db)
    gaps = []
    for _ in range(40):
        [job_id] = enqueue(db, "t.effect")
        db.wait_for("select count(*)::int from effects where job_id = %s", 1, 10, [job_id])
        created = db.value("select extract(epoch from created_at)::float8 from supervisor.jobs where id = %s", [job_id])
        gaps.append(started(db, job_id) - created)
    report(f"notified job: starts {shown(gaps)} after its transaction")
    assert statistics.median(gaps) < PROMPT_S
    assert one.stop() == exits.OK


def warm(db: Database) -> None:
    """Let the workers open their connections, and say that they are idle."""
    enqueue(db, "t.effect", count=40)
    wait_done(db, 40)
    db.wait_for("select count(*) > 0 from supervisor.waiting", True)


def started(db: Database, job_id: int) -> float:
    at: float = db.value("select extract(epoch from at)::float8 from effects where job_id = %s", [job_id])
    return at


def shown(seconds: list[float]) -> str:
    return f"median {statistics.median(seconds) * 1000:.1f} ms, max {max(seconds) * 1000:.1f} ms"
