"""Rates of queues and ageing, as running services keep them: by count, whoever dies.

    every claim --a trigger of the test's own--> claimed (started_at)     runs that are killed have one too

A busy machine is allowed NOISE_S more than what is promised. Where something happens at once nothing polls.

Elsewhere: the rules in the database (tests/db/test_pace.py, test_shares.py); max_running (test_queues.py).
"""

import random
import time
from collections.abc import Callable

import pytest

from tests.process.test_queues import NOTIFIED, kill, most_at_once, starts
from tests.support.database import Database
from tests.support.jobs import enqueue
from tests.support.pace import most_in_a_period, starts_of
from tests.support.queues import limit
from tests.support.service import Service
from tests.support.sizes import FULL, within
from tests.support.waiting import wait_until

Start = Callable[..., Service]
NOISE_S = 3.0
SECOND = 1_000_000
JOBS, KILLS = (1000, 40) if FULL else (160, 14)


def rate(db: Database, most: int, period: str = "1 s", queue: str = "q") -> None:
    db.rows("select supervisor.set_queue(%s, rate_limit => %s, rate_period => %s::interval)", [queue, most, period])


@pytest.mark.timeout(400 if FULL else 120)
def test_two_services_never_exceed_a_rate_and_a_limit_while_workers_are_killed(db: Database, service: Start) -> None:
    """By started_at of every claim, and by the starts and ends that the jobs note; jobs of both ways to run."""
    services = [service(name=f"s{n}", processes=2, concurrency=4, retry_base_s=0.05) for n in range(2)]
    rate(db, 20)
    limit(db, 3)
    with starts_of(db) as claimed:
        for kind in ("t.sleep", "t.sleep_sync"):
            enqueue(db, kind, {"seconds": 0.05}, count=JOBS // 2, queue="q", max_crashes=1000)
            enqueue(db, kind, {"seconds": 0.02}, count=JOBS // 2, queue="free", max_crashes=1000)
        rng = random.Random(29)
        for _ in range(KILLS):
            before = len(starts(db))
            wait_until(
                lambda before=before: len(starts(db)) >= before + 3 or db.statuses().keys() == {"done"},  # type: ignore[misc]
                30,
                "jobs go on",
            )
            workers = sorted(rng.choice(services).workers().values())
            if workers:
                kill(db, rng.choice(workers))
        db.wait_for("select count(*)::int from supervisor.history", 2 * JOBS, 300 if FULL else 90)
        times = claimed.times()
    assert len(times) > JOBS, "no run was cut short: nothing was shown"
    assert most_in_a_period(times, SECOND) <= 20
    assert most_at_once(db) <= 3
    assert most_at_once(db, "free") > 3
    print(f">>> {len(times)} starts, at most {most_in_a_period(times, SECOND)} in a second")


def test_a_rate_is_reached_without_polling_evenly_and_by_two_services(db: Database, service: Start) -> None:
    """The next start is planned: a worker is woken for it at its time."""
    for name in ("a", "b"):
        service(name=name, processes=1, concurrency=5, **NOTIFIED)
    rate(db, 20)
    with starts_of(db) as claimed:
        enqueue(db, "t.sleep", {"seconds": 0.2}, count=100, queue="q")
        db.wait_for("select count(*)::int from claimed", 100, 30)
        times = claimed.times()
        pids = db.value("select count(distinct pid)::int from effects where note = 'start'")
    assert most_in_a_period(times, SECOND) <= 20
    took = (times[-1] - times[0]) / SECOND
    print(f">>> 100 starts at 20/s took {took:.2f} s (4.95 s would be even), shared by {pids} services")
    assert took < 99 / 20 / 0.95 + within(0.25, busy_s=4)
    # Evenly: never more than two within 40 ms, where one is due each 50.
    assert most_in_a_period(times, 40_000) <= 2
    assert pids == 2


def test_a_rate_that_is_set_changed_and_taken_away_holds_within_a_second(db: Database, service: Start) -> None:
    for name in ("a", "b"):
        service(name=name, processes=1, concurrency=10, **NOTIFIED)
    with starts_of(db) as claimed:
        rate(db, 1, "1 hour")
        enqueue(db, "t.sleep", {"seconds": 0.0}, count=60, queue="q")
        db.wait_for("select count(*)::int from claimed", 1, 20)
        asked = time.monotonic()
        rate(db, 20)
        db.wait_for("select (count(*) >= 3)::int from claimed", 1, 20)
        assert time.monotonic() - asked < 1.0 + NOISE_S
        stopped = db.value(
            "select extract(epoch from clock_timestamp())::float8 from supervisor.set_queue('q', null, 1, '1 hour')"
        )
        wait_until(
            lambda: db.value("select count(*)::int from supervisor.history") == len(claimed.times()), 20, "quiet"
        )
        assert not [at for at in claimed.times() if at / SECOND > stopped], "an hour's one start has been"
        asked = time.monotonic()
        db.rows("select supervisor.unset_queue('q', what => 'rate')")
        db.wait_for("select count(*)::int from supervisor.history", 60, 20)
        assert time.monotonic() - asked < 1.0 + NOISE_S
    assert most_in_a_period(claimed.times(), SECOND) >= 20, "without a rate they start as they come"


def test_jobs_of_low_priority_run_while_urgent_ones_never_end(db: Database, service: Start) -> None:
    """Forty urgent jobs always wait, none for long: without ageing it would never be the others' turn."""
    service(processes=1, concurrency=2, prefetch=0, ageing_s=2.0)
    low: list[int] = []
    fewest = 1000

    def go_on(until: Callable[[], bool]) -> bool:
        nonlocal fewest
        waiting = db.value(
            "select count(*)::int from supervisor.job where queue = 'q' and priority = 0 and lease is null"
        )
        fewest = min(fewest, waiting) if low else fewest
        if waiting < 40:
            enqueue(db, "t.sleep", {"seconds": 0.05}, count=40 - waiting, queue="q", priority=0)
        return until()

    def started() -> int:
        return sum(job in low for job, _ in starts(db))

    wait_until(lambda: go_on(lambda: len(starts(db)) > 20), 20, "urgent jobs run")
    low += enqueue(db, "t.sleep", {"seconds": 0.0}, count=3, queue="q", priority=9)
    wait_until(lambda: go_on(lambda: started() == 3), 20, "the others run too")
    waited = [
        row[0]
        for row in db.rows(
            "select extract(epoch from s.at - j.run_at)::float8 from effects s"
            "  join supervisor.jobs j on j.id = s.job_id where s.note = 'start' and j.id = any(%s)",
            [low],
        )
    ]
    print(f">>> waited {', '.join(f'{wait:.2f} s' for wait in waited)} with an ageing time of 2 s")
    assert fewest > 0, "urgent jobs were there all the time"
    assert min(waited) >= 2.0, "before its time priorities are strict"
    assert max(waited) < 2.0 + 1.0 + NOISE_S, "those that were added a second before them come first"
