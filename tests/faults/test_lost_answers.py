"""Statements whose answers never arrive: they may have been carried out, and the service must find out."""

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from supervisor.client import enqueue, enqueue_many
from supervisor.newjob import NewJob
from tests.support.database import Database
from tests.support.fault_handlers import MODULES
from tests.support.proxy import Proxy, function_called
from tests.support.service import Service
from tests.support.sizes import within
from tests.support.waiting import wait_until

LOST = 100
Start = Callable[..., Service]


def through(proxy: Proxy, **settings: Any) -> dict[str, Any]:
    """The settings of a service that reaches its database through *proxy*."""
    return {
        "handlers": MODULES,
        "env": {"SUPERVISOR_DATABASE_URL": proxy.conninfo},
        "lease_s": 30,
        **settings,
    }


@pytest.mark.timeout(180)
def test_lost_answers_cost_no_job_and_no_second_run(db: Database, service: Start, proxy: Proxy) -> None:
    """B18, promise 2: 100 answers to claims, acks, settles, session openings and moves, and commits are lost.

    No lease has passed, so nothing runs twice, nothing is charged, and nobody reports a lost lease.
    """
    rng = random.Random(20)

    def rule(sql: str) -> str | None:
        if sum(proxy.lost.values()) >= LOST:
            return None
        called = function_called(sql) or sql.lower()
        if called == "open_session":
            return called if proxy.lost[called] < 4 else None
        if called == "move_session":
            return called if rng.random() < 0.5 else None
        if called == "settle":
            return called if rng.random() < 0.3 else None
        return called if called in ("work", "commit") and rng.random() < 0.15 else None

    proxy.lose(rule)
    one = service(**through(proxy, processes=2, concurrency=5, retry_base_s=0.05))
    conn = db.connect()
    kinds: dict[int, str] = {}
    began = time.monotonic()
    while sum(proxy.lost.values()) < LOST and time.monotonic() - began < 100:
        batch = [NewJob("t.effect"), NewJob("t.effect_sync"), NewJob("t.fail", {"times": 1}), NewJob("f.transaction")]
        added = enqueue_many(conn, batch)
        kinds |= {job.id: job_.kind for job, job_ in zip(added, batch, strict=True)}
        db.wait_for("select count(*) < 60 from supervisor.job", True, 30)
    assert sum(proxy.lost.values()) == LOST, proxy.lost
    assert all(proxy.lost[what] for what in ("open_session", "move_session", "work", "settle", "commit")), proxy.lost

    db.wait_for("select count(*) from supervisor.job", 0, 30)
    print(f">>> {len(kinds)} jobs, lost {dict(proxy.lost)}")
    assert db.statuses() == {"done": len(kinds)}
    wrong = db.rows(
        "select id, kind, attempts, crashes from supervisor.jobs"
        " where crashes > 0 or kind <> 'f.transaction' and attempts <> case when kind = 't.fail' then 2 else 1 end"
    )  # a handler whose own transaction broke before the commit has failed, and is retried
    assert wrong == []
    ran = db.effects("done") | db.effects("written")
    assert ran == dict.fromkeys(kinds, 1)
    assert one.metric("supervisor_leases_lost_total") == 0
    assert one.events("lease.lost") == []
    assert db.value("select count(*) from supervisor.session where closed_at is null") == 2
    assert db.value("select count(*) from supervisor.session where closed_as = 'reaped'") == 0
    assert one.stop() == 0


def test_jobs_of_a_lost_claim_are_back_within_seconds_untouched(db: Database, service: Start, proxy: Proxy) -> None:
    """B18: nobody but the database knows of that claim; the worker moves on and the jobs come back."""
    one = service(**through(proxy, processes=1, concurrency=4, prefetch=0))
    conn = db.connect()
    for _ in range(5):
        before = proxy.lost["work"]
        proxy.lose_next("work")
        jobs = [added.id for added in enqueue_many(conn, [NewJob("t.effect")] * 3)]
        wait_until(lambda seen=before: proxy.lost["work"] > seen, 10, "a claim's answer is lost")  # type: ignore[misc]
        began = time.monotonic()
        db.wait_for("select count(*) from supervisor.jobs where status = 'done' and id = any(%s)", 3, 10, [jobs])
        took = time.monotonic() - began
        print(f">>> back and done {took:.2f} s after the loss")
        assert took < within(6, busy_s=9)
    assert db.rows("select distinct attempts, crashes from supervisor.jobs") == [(1, 0)]
    assert one.metric("supervisor_leases_lost_total") == 0


def test_jobs_of_a_lost_claim_come_back_while_every_hand_is_busy(db: Database, service: Start, proxy: Proxy) -> None:
    """Once they waited until some running job ended: the worker had no reason to say anything sooner."""
    service(**through(proxy, processes=1, concurrency=1, prefetch=1))
    conn = db.connect()
    long = enqueue(conn, "t.sleep", {"seconds": 60}).id
    db.wait_for("select count(*) from effects where job_id = %s", 1, 10, [long])
    proxy.lose_next("work")
    other = enqueue(conn, "t.effect").id
    wait_until(lambda: proxy.lost["work"], 10, "a claim's answer is lost")
    service(processes=1, handlers=MODULES)
    db.wait_for("select status from supervisor.jobs where id = %s", "done", 10, [other])
    assert db.rows("select attempts, crashes from supervisor.jobs where id = %s", [other]) == [(1, 0)]
    assert db.value("select status from supervisor.jobs where id = %s", [long]) == "running"


def test_a_half_open_connection_costs_no_lease(db: Database, service: Start, proxy: Proxy) -> None:
    """B18, B24: what is connected gets no answer any more, new connections do; leases are renewed in time.

    Once the driver waited ten seconds more for the server to take back the renewal, and the lease passed.
    """
    one = service(**through(proxy, processes=2, concurrency=2, lease_s=6, statement_timeout_s=2))
    conn = db.connect()
    jobs = [enqueue(conn, "t.sleep", {"seconds": 12}).id for _ in range(3)]
    db.wait_for("select count(*) from effects", 3, 10)
    assert proxy.strand() >= 4
    db.wait_for("select count(*) from supervisor.jobs where status = 'done'", 3, 30)
    assert db.effects("done") == dict.fromkeys(jobs, 1)
    assert db.effects("start") == dict.fromkeys(jobs, 1)
    assert one.metric("supervisor_leases_lost_total") == 0
    assert one.events("lease.fencing") == []
    wait_until(lambda: one.metric("supervisor_listening") == 1, 20, "it listens again")
