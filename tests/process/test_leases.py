"""Leases: a busy handler keeps its own, and nobody takes what a living worker holds."""

import os
import signal
from collections.abc import Callable

import pytest

from supervisor import exits
from tests.support.database import Database
from tests.support.jobs import enqueue, wait_done
from tests.support.service import Service
from tests.support.sizes import FULL

Start = Callable[..., Service]


@pytest.mark.parametrize("kind", ["t.block", "t.gil"])
def test_a_handler_that_blocks_everything_keeps_its_lease_and_its_neighbours(
    kind: str, db: Database, service: Start
) -> None:
    """B16: it computes for 4 leases without a break, on the loop or holding the interpreter; another supervisor
    would take what lapses. One run each, and a warning that names the kind."""
    [busy] = enqueue(db, kind, {"seconds": 4.0}, priority=-1)
    waiting = enqueue(db, "t.effect", count=8)
    one = service(processes=1, concurrency=1, prefetch=10, lease_s=1)
    db.wait_for("select count(*)::int from effects where note = 'start'", 1)
    held = db.value("select count(*)::int from supervisor.job where lease is not null")
    assert held > 1, "no neighbour was claimed with it: nothing to see here"
    other = service(processes=1, lease_s=1)
    wait_done(db, 9, 30)

    assert db.effects("start") == {busy: 1}
    assert db.effects("done") == dict.fromkeys([busy, *waiting], 1)
    assert db.rows("select id, attempts, crashes from supervisor.history where attempts <> 1 or crashes <> 0") == []
    warning = one.wait_event("worker.blocked")
    assert kind in warning["kinds"]
    assert busy in warning["job_ids"]
    assert one.events("lease.lost") == []
    assert other.events("lease.reaped") == []
    assert (one.stop(), other.stop()) == (exits.OK, exits.OK)


@pytest.mark.timeout(120)
def test_supervisors_that_come_and_go_take_nothing_from_a_living_one(db: Database, service: Start) -> None:
    """B46: A runs jobs of several leases; others start one after the other, stop, crash and start again. As many
    runs as jobs."""
    jobs, seconds, others = (50, 20.0, 3) if FULL else (20, 14.0, 2)
    ids = enqueue(db, "t.sleep", {"seconds": seconds}, count=jobs)
    options = {"processes": 1, "lease_s": 1.5}
    first = service(processes=2, concurrency=jobs // 2, prefetch=0, lease_s=1.5)
    db.wait_for("select count(*)::int from effects where note = 'start'", jobs)
    came = []
    for number in range(others):
        one = service(**options)
        if number % 2:
            one.kill()
        else:
            assert one.stop() == exits.OK
        came.append(service(**options))
        if number < 2:  # the third takes its time on a slow machine
            assert db.statuses() == {"running": jobs}, "A still runs them all"
    wait_done(db, jobs, 40)
    assert db.effects("start") == dict.fromkeys(ids, 1)
    assert db.rows("select id from supervisor.history where attempts <> 1 or crashes <> 0") == []
    for one in (first, *came):
        assert one.stop() == exits.OK


def test_a_stopped_parent_loses_its_leases_and_goes_on_afterwards(db: Database, service: Start) -> None:
    """Nobody renews for its workers: another supervisor takes their jobs after the lease. What the first runs still
    return changes nothing, and when the parent goes on, its workers work again."""
    ids = enqueue(db, "t.sleep", {"seconds": 4.0}, count=4)
    first = service(processes=1, concurrency=4, lease_s=1.5)
    db.wait_for("select count(*)::int from effects where note = 'start'", 4)
    os.kill(first.parent_pid, signal.SIGSTOP)
    second = service(processes=1, concurrency=4, lease_s=1.5, retry_base_s=0.01)
    db.wait_for("select count(*)::int from effects where note = 'start'", 8, 15)
    gap = db.value("select extract(epoch from max(at) - min(at))::float8 from effects where note = 'start'")
    assert gap > 1.0, "two runs overlapped inside the lease"
    wait_done(db, 4, 15)
    assert db.rows("select id, attempts, crashes from supervisor.history order by id") == [(x, 1, 1) for x in ids]
    os.kill(first.parent_pid, signal.SIGCONT)
    first.wait_event("session.closed", 10)

    assert second.stop() == exits.OK
    enqueue(db, "t.effect", count=10)
    wait_done(db, 14, 10)
    assert first.stop() == exits.OK
    assert db.statuses() == {"done": 14}
