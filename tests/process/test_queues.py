"""Paused queues and cluster-wide limits, as running services keep them: by count, whoever dies.

    t.sleep writes (start, done) by a connection of its own --> effects <-- killed: what the test ended, before it did

From these rows the most jobs that ran at one time is known without asking the service.

Elsewhere: the rules in the database (tests/db/test_queues.py); fault, then claim: the bounds are lease + reaper
interval for a lost node (B17), a second for everything else; a busy machine is allowed NOISE_S more.
"""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from tests.support import proc
from tests.support.database import Database
from tests.support.jobs import enqueue
from tests.support.service import Service
from tests.support.sizes import FULL, within
from tests.support.waiting import wait_until

Start = Callable[..., Service]
LEASE_S = 3.0
REAP_S = 0.5
NOISE_S = within(3.0, busy_s=8.0)
CHAOS_JOBS, CHAOS_KILLS = (1000, 60) if FULL else (150, 12)
QUICK = {"lease_s": LEASE_S, "reap_every_s": REAP_S, "retry_base_s": 0.05}
NOTIFIED = {"poll_every_s": 60.0}  # whatever happens at once can have come by notification only


def limit(db: Database, most: int, queue: str = "q") -> None:
    db.rows("select supervisor.set_queue(%s, max_running => %s)", [queue, most])


def kill(db: Database, pid: int) -> None:
    """SIGKILL a worker; its runs are noted as ended just before."""
    db.execute("insert into effects (job_id, kind, attempt, pid, note) values (0, '', 0, %s, 'killed')", [pid])
    with contextlib.suppress(ProcessLookupError):  # it has left by itself meanwhile
        os.kill(pid, signal.SIGKILL)


def starts(db: Database) -> list[tuple[int, int]]:
    """(job, pid) of each start, in order."""
    return [(row[0], row[1]) for row in db.rows("select job_id, pid from effects where note = 'start' order by at")]


def most_at_once(db: Database, queue: str = "q") -> int:
    """The most jobs of a queue that surely ran at one time: from its start to its end or its worker's.

    A run that began between the note on its worker and its death did surely not run for any time.
    """
    most = db.value(
        "with run as ("
        "  select s.at as began, coalesce("
        "      min(e.at) filter (where e.note = 'done'),"
        "      min(greatest(e.at, s.at)) filter (where e.note = 'killed'), 'infinity') as ended"
        "    from effects s"
        "    join supervisor.jobs j on j.id = s.job_id and j.queue = %s"
        "    left join effects e on e.pid = s.pid"
        "     and (e.note = 'killed' or (e.note = 'done' and e.job_id = s.job_id and e.at > s.at))"
        "   where s.note = 'start' group by s.job_id, s.pid, s.at)"
        " select max((select count(*) from run other where other.began <= run.began and other.ended > run.began))::int"
        "   from run",
        [queue],
    )
    return int(most)


@pytest.mark.parametrize("most", [1, 3])
def test_jobs_of_killed_workers_run_again_and_then_the_next_one(db: Database, service: Start, most: int) -> None:
    """B17: limit 1, SIGKILL during the job; limit 3, three of them at once."""
    service(processes=3, concurrency=1, **QUICK, **NOTIFIED)
    limit(db, most)
    first = enqueue(db, "t.sleep", {"seconds": 3600.0}, count=most, queue="q")
    wait_until(lambda: len(starts(db)) == most, 20, "they run")
    last = enqueue(db, "t.sleep", {"seconds": 0.0}, count=2, queue="q")
    db.execute("update supervisor.job set payload = '{\"seconds\": 0.3}' where id = any(%s)", [first])
    killed = time.monotonic()
    for pid in {pid for _, pid in starts(db)}:
        kill(db, pid)
    db.wait_for("select count(*)::int from supervisor.history", most + 2, 20)
    assert time.monotonic() - killed < LEASE_S + REAP_S + NOISE_S
    ran = [job for job, _ in starts(db)]
    assert sorted(ran) == sorted(first * 2 + last)
    assert most_at_once(db) == most
    assert {row[0] for row in db.rows("select crashes from supervisor.jobs where id = any(%s)", [first])} == {1}


@pytest.mark.parametrize("most", [1, 3])
def test_jobs_of_a_lost_node_free_their_places_within_lease_and_reaper_interval(
    db: Database, service: Start, most: int
) -> None:
    """B17: nobody is left who could give a place back, and another node waits for it."""
    lost = service(name="lost", processes=3, concurrency=1, **QUICK)
    limit(db, most)
    first = enqueue(db, "t.sleep", {"seconds": 3600.0}, count=most, queue="q")
    wait_until(lambda: len(starts(db)) == most, 20, "they run")
    [last] = enqueue(db, "t.sleep", {"seconds": 0.0}, queue="q")
    db.execute("update supervisor.job set payload = '{\"seconds\": 0}' where id = any(%s)", [first])
    # It polls: what the lost supervisor has put back in its last moments, it has told nobody.
    service(name="left", processes=3, concurrency=1, poll_every_s=1.0, **QUICK)

    def gone() -> bool:
        for process in lost.processes():
            proc.kill(process.pid)
        return not lost.processes() and not lost.alive

    wait_until(gone, 10, "no process is left")
    died = time.monotonic()
    db.wait_for("select count(*)::int from supervisor.history", most + 1, 20)
    took = time.monotonic() - died
    print(f">>> {most + 1} jobs done {took:.1f} s after the death of the node")
    assert took < LEASE_S + REAP_S + NOISE_S
    assert sorted(job for job, _ in starts(db)) == sorted([*first * 2, last])


@pytest.mark.timeout(600 if FULL else 180)
def test_two_services_never_exceed_a_limit_while_workers_are_killed(db: Database, service: Start) -> None:
    """With neighbours in other queues, so that some deaths leave suspects; jobs of both ways to run."""
    # No lease passes meanwhile: a job that is told to stop for that leaves no note of its end.
    services = [service(name=f"s{n}", processes=2, concurrency=4, retry_base_s=0.05) for n in range(2)]
    limit(db, 3)
    for kind in ("t.sleep", "t.sleep_sync"):
        enqueue(db, kind, {"seconds": 0.05}, count=CHAOS_JOBS // 2, queue="q", max_crashes=1000)
        enqueue(db, kind, {"seconds": 0.02}, count=CHAOS_JOBS // 2, queue="free", max_crashes=1000)
    rng = random.Random(17)
    leased: list[int] = []

    def gone_on(starts_before: int) -> bool:
        leased.append(db.value("select count(*)::int from supervisor.job where queue = 'q' and lease is not null"))
        return len(starts(db)) >= starts_before + 3 or db.statuses().keys() == {"done"}

    for _ in range(CHAOS_KILLS):
        before = len(starts(db))
        wait_until(lambda before=before: gone_on(before), 30, "jobs go on")  # type: ignore[misc]
        workers = sorted(rng.choice(services).workers().values())
        if workers:
            kill(db, rng.choice(workers))
    db.wait_for("select count(*)::int from supervisor.history", 2 * CHAOS_JOBS, 400 if FULL else 90)
    assert max(leased) == 3
    assert most_at_once(db) == 3
    assert most_at_once(db, "free") > 3
    assert len(starts(db)) > 2 * CHAOS_JOBS, "no run was cut short: nothing was shown"


def test_a_place_that_another_node_frees_is_taken_within_a_second(db: Database, service: Start) -> None:
    """Its own worker goes on with another queue: nobody tells the node that waits."""
    service(name="a", processes=1, concurrency=1, queues="q,other", **NOTIFIED)
    limit(db, 1)
    [first] = enqueue(db, "t.sleep", {"seconds": 1.0}, queue="q")
    wait_until(lambda: len(starts(db)) == 1, 20, "it runs")
    service(name="b", processes=1, concurrency=1, queues="q", **NOTIFIED)
    enqueue(db, "t.sleep", {"seconds": 30.0}, queue="other", priority=-100)
    [second] = enqueue(db, "t.sleep", {"seconds": 0.0}, queue="q")
    db.wait_for("select count(*)::int from effects where note = 'done' and job_id = %s", 1, 20, [second])
    waited = db.value(
        "select extract(epoch from b.at - a.at)::float8 from effects a, effects b"
        " where a.job_id = %s and a.note = 'done' and b.job_id = %s and b.note = 'start'",
        [first, second],
    )
    assert waited < 1.0 + NOISE_S


def test_many_jobs_of_a_limited_queue_fill_every_worker_at_once(db: Database, service: Start) -> None:
    """No worker takes more than it has hands for, and the others hear of the rest without waiting for a look."""
    service(processes=4, concurrency=2, **NOTIFIED)
    limit(db, 8)
    enqueue(db, "t.sleep", {"seconds": 2.0}, count=12, queue="q")
    wait_until(lambda: len(starts(db)) == 8, 20, "as many run as may")
    first, last = db.rows("select min(at), max(at) from effects where note = 'start'")[0]
    assert (last - first).total_seconds() < 2.0
    assert len({pid for _, pid in starts(db)}) == 4
    db.wait_for("select count(*)::int from supervisor.history", 12, 20)
    assert most_at_once(db) == 8


def test_pause_and_resume_are_effective_within_a_second_everywhere(db: Database, service: Start) -> None:
    for name in ("a", "b"):
        service(name=name, processes=1, concurrency=2, prefetch=20, **NOTIFIED)
    enqueue(db, "t.sleep", {"seconds": 0.05}, count=200, queue="q")
    wait_until(lambda: len({pid for _, pid in starts(db)}) == 2, 20, "both run some")
    db.rows("select supervisor.pause_queue('q', by => 'test')")
    paused = db.value("select paused_at from supervisor.queue")
    db.wait_for("select count(*)::int from supervisor.job where lease is not null", 0, 5)
    ran = len(starts(db))
    assert ran < 200
    late = db.value(
        "select count(*)::int from effects where note = 'start' and at > %s + %s * interval '1 s'",
        params=[paused, 1.0 + NOISE_S],
    )
    assert late == 0
    # Others run, jobs can be added, and none of the paused ones has started meanwhile.
    enqueue(db, "t.sleep", {"seconds": 0.0}, count=5, queue="q")
    enqueue(db, "t.sleep", {"seconds": 0.0}, count=5, queue="other")
    db.wait_for("select count(*)::int from supervisor.history where queue = 'other'", 5, 20)
    assert len(starts(db)) == ran + 5

    resumed = db.value("select clock_timestamp() from supervisor.resume_queue('q')")
    wait_until(lambda: len({pid for _, pid in starts(db)[ran + 5 :]}) == 2, 20, "both go on")
    first = db.value("select min(at) from effects where note = 'start' and at > %s", [resumed])
    assert (first - resumed).total_seconds() < 1.0 + NOISE_S
    db.wait_for("select count(*)::int from supervisor.history where queue = 'q'", 205, 60)


def test_a_new_limit_counts_what_runs_and_a_raised_one_is_used(db: Database, service: Start) -> None:
    running = service(processes=2, concurrency=4, **NOTIFIED)
    enqueue(db, "t.sleep", {"seconds": 4.0}, count=4, queue="q")
    wait_until(lambda: len(starts(db)) == 4, 20, "they run")
    limit(db, 5)
    running.wait_event("queue.counted", 20, queue="q")
    assert db.value("select cardinality(ids) from supervisor.place where queue = 'q'") == 4
    enqueue(db, "t.sleep", {"seconds": 4.0}, count=4, queue="q")
    wait_until(lambda: len(starts(db)) == 5, 20, "one more runs")
    asked = db.value("select clock_timestamp() from supervisor.set_queue('q', max_running => 7)")
    wait_until(lambda: len(starts(db)) >= 7, 20, "two more run")
    at = db.value("select at from effects where note = 'start' order by at offset 6 limit 1")
    assert (at - asked).total_seconds() < 1.0 + NOISE_S
    db.wait_for("select count(*)::int from supervisor.history", 8, 30)
    assert most_at_once(db) == 7
