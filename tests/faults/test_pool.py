"""Handlers' own transactions: the pool stays whole and the job's end is exact, whatever happens in between."""

import random
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from supervisor.client import enqueue, enqueue_many
from supervisor.newjob import NewJob
from tests.support import proc
from tests.support.database import Database
from tests.support.fault_handlers import MODULES
from tests.support.proxy import Proxy
from tests.support.service import Service
from tests.support.sizes import FULL, within
from tests.support.waiting import wait_until

Start = Callable[..., Service]
HURRIED = 5000 if FULL else 300
HANDLERS = "pg-supervisor handler%"


@pytest.mark.timeout(600 if FULL else 150)
def test_a_pool_is_whole_after_jobs_were_cancelled_while_they_used_it(db: Database, service: Start) -> None:
    """B30: a pool of 2 for 10 slots; each job is cut off by its time limit after 0 to 30 ms, waiting or in use."""
    one = service(handlers=MODULES, processes=1, concurrency=10, pool_size=2, kill_after_s=30)
    workers = one.worker_pids()
    rng = random.Random(30)
    conn = db.connect()
    before = jobs_per_s(db, conn)
    db.execute("truncate supervisor.history")
    began = time.monotonic()
    jobs = enqueue_many(
        conn,
        [NewJob("f.hurried", timeout=0.001 + rng.random() * 0.03, max_attempts=1) for _ in range(HURRIED)],
    )
    db.wait_for("select count(*) from supervisor.job", 0, 500 if FULL else 100)
    took = time.monotonic() - began
    assert db.statuses() == {"dead": len(jobs)}
    how: dict[str, int] = dict(
        db.rows("select split_part(last_error, ':', 1), count(*)::int from supervisor.jobs group by 1")
    )
    print(f">>> {len(jobs)} jobs cut off in {took:.1f} s: {how}")
    assert one.worker_pids() == workers, "nobody was killed"

    after = jobs_per_s(db, conn)
    print(f">>> jobs/s before: {shown(before)}; after: {shown(after)}; {len(db.server_sessions(HANDLERS))} sessions")
    if FULL:
        assert max(after) > 0.75 * max(before), "with one connection less they come half as fast"
    wait_until(
        lambda: len(db.server_sessions(HANDLERS)) == one.metric("supervisor_pool_connections", state="open") == 2,
        10,
        "the server's sessions and the gauge say 2",
    )
    wait_until(lambda: one.metric("supervisor_pool_connections", state="idle") == 2, 5, "both are free")
    assert one.metric("supervisor_pool_connections", state="waiting") == 0
    assert {state for _, _, state, _ in db.server_sessions(HANDLERS)} == {"idle"}
    assert one.stop() == 0


def jobs_per_s(db: Database, conn: psycopg.Connection[Any]) -> list[float]:
    """How fast 100 jobs use the pool, three times; each has its connection for long enough to be what counts."""
    rates = []
    for _ in range(3 if FULL else 1):
        jobs = [job.id for job in enqueue_many(conn, [NewJob("f.transaction", {"inside_s": 0.03})] * 100)]
        db.wait_for("select count(*) from supervisor.jobs where status = 'done' and id = any(%s)", 100, 30, [jobs])
        took = db.value(
            "select extract(epoch from max(at) - min(at))::float8 from effects where job_id = any(%s)", [jobs]
        )
        rates.append(len(jobs) / took)
        assert db.effects("written") == dict.fromkeys(jobs, 1)
        db.execute("truncate effects")
    return rates


def shown(rates: list[float]) -> str:
    return ", ".join(f"{rate:.0f}" for rate in rates)


def test_a_pool_used_up_holds_up_no_probe_and_no_other_job(db: Database, service: Start) -> None:
    """B44: all pooled connections are taken; liveness and readiness stay, acks and claims do not need the pool."""
    one = service(handlers=MODULES, processes=1, concurrency=10, pool_size=1)
    conn = db.connect()
    held = [enqueue(conn, "f.transaction", {"inside_s": 2.0}).id for _ in range(3)]
    db.wait_for("select count(*) from pg_stat_activity where state = 'idle in transaction' and query like %s", 1, 10,
                ["%effects%"])  # fmt: skip
    began = time.monotonic()
    other = [enqueue(conn, "t.effect").id for _ in range(20)]
    db.wait_for("select count(*) from supervisor.jobs where status = 'done' and id = any(%s)", 20, 5, [other])
    assert time.monotonic() - began < within(2, busy_s=4.5)
    for path in ("/livez", "/readyz"):
        asked = time.monotonic()
        assert one.get(path)[0] == 200
        assert time.monotonic() - asked < within(1, busy_s=4)
    db.wait_for("select count(*) from supervisor.jobs where status = 'done' and id = any(%s)", 3, 20, [held])
    assert one.stop() == 0


@pytest.mark.parametrize("kind", ["f.transaction", "f.transaction_sync"])
def test_a_failing_transaction_leaves_nothing_and_the_job_is_retried(db: Database, service: Start, kind: str) -> None:
    """Promise 3: what a failed attempt wrote is undone with it; the attempt that commits ends the job."""
    service(handlers=MODULES, processes=1, retry_base_s=0.02)
    job = enqueue(db.connect(), kind, {"fail_times": 2}).id
    db.wait_for("select status from supervisor.jobs where id = %s", "done", 10, [job])
    assert db.rows("select attempt, note from effects where job_id = %s", [job]) == [(3, "written")]
    assert db.rows("select attempts, crashes from supervisor.jobs where id = %s", [job]) == [(3, 0)]


@pytest.mark.timeout(150)
def test_effects_in_the_jobs_transaction_happen_exactly_once_under_kills(db: Database, service: Start) -> None:
    """Promise 3: workers are killed at any moment, the commit included; each effect is there once, none twice."""
    one = service(handlers=MODULES, processes=2, concurrency=5, retry_base_s=0.01, retry_cap_s=0.1, lease_s=30)
    rng, conn = random.Random(3), db.connect()
    kinds = ("f.transaction", "f.transaction_sync")
    jobs = [
        job.id
        for job in enqueue_many(
            conn,
            [
                NewJob(
                    kinds[n % 2], {"before_s": rng.random() * 0.01, "inside_s": rng.random() * 0.02}, max_crashes=1000
                )
                for n in range(1500)
            ],
        )
    ]
    kills = 0
    while db.value("select count(*) from supervisor.job") > 100:
        for pid in one.worker_pids()[:1]:
            proc.kill(pid)
            kills += 1
        done = db.value("select count(*) from supervisor.history")
        db.wait_for("select count(*) >= %s from supervisor.history", True, 20, [min(1400, done + rng.randint(5, 90))])
    db.wait_for("select count(*) from supervisor.job", 0, 60)
    print(f">>> {len(jobs)} jobs, {kills} kills, crashes {db.value('select sum(crashes) from supervisor.history')}")
    assert kills >= 10
    assert db.statuses() == {"done": len(jobs)}
    assert db.effects("written") == dict.fromkeys(jobs, 1)


@pytest.mark.parametrize("kind", ["f.transaction", "f.transaction_sync"])
def test_a_transaction_whose_lease_is_lost_meanwhile_is_undone(
    db: Database, service: Start, proxy: Proxy, kind: str
) -> None:
    """Promise 3: the lease passes while the handler writes; its commit is refused and the second run's counts."""
    first = service(
        handlers=MODULES, processes=1, concurrency=2, lease_s=2, fence=False,
        env={"SUPERVISOR_DATABASE_URL": proxy.conninfo},
    )  # fmt: skip
    conn = db.connect()
    job = enqueue(conn, kind, {"inside_s": 4.0}).id
    db.wait_for("select count(*) from pg_stat_activity where state = 'idle in transaction' and query like %s", 1, 10,
                ["%effects%"])  # fmt: skip
    db.execute("update supervisor.session set closed_at = now(), closed_as = 'reaped'")
    service(handlers=MODULES, processes=1, concurrency=2, lease_s=2, retry_base_s=0.01)
    db.wait_for("select status from supervisor.jobs where id = %s", "done", 20, [job])
    wait_until(lambda: first.metric("supervisor_leases_lost_total") == 1, 10, "the first run's loss is counted")
    assert db.effects("written") == {job: 1}
    assert db.rows("select attempts, crashes, claims from supervisor.jobs where id = %s", [job]) == [(1, 1, 2)]
    assert first.metric("supervisor_leases_lost_total") == 1
