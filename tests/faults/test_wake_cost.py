"""What wake-ups cost those who enqueue (B23): few notifications however many jobs, none where they are turned off.

The clients are pgbench: each transaction writes an ordinary row and enqueues one job.
"""

from collections.abc import Callable

import pytest

from tests.support.database import Database
from tests.support.jobs import enqueue
from tests.support.servers import Server
from tests.support.service import Service
from tests.support.sizes import FULL
from tests.support.writers import Ear, commits_per_s

Start = Callable[..., Service]
CLIENTS = 64 if FULL else 16
SLICE_S, SLICES = (10, 6) if FULL else (1, 1)
FLOOD_S = 60 if FULL else 5
MOST_PER_S = 100 if FULL else 200  # a short flood has more of its beginning
WRITE = "begin; insert into orders default values; select supervisor.enqueue('t.noop'); commit;"


@pytest.fixture
def orders(db: Database) -> None:
    db.execute("create table orders (id bigint generated always as identity primary key, at timestamptz default now())")


def test_notifications_stay_few_however_many_enqueue(
    db: Database, server: Server, service: Start, orders: None
) -> None:
    """Each commit once notified as long as some worker was idle now and then: thousands a second, one after the other
    under the server's one lock for them. Now they are few, jobs start all the same, and come promptly afterwards."""
    one = service(processes=2, poll_every_s=60)
    with Ear(db) as ear:
        rate = commits_per_s(server, db, WRITE, CLIENTS, FLOOD_S)
    per_s = ear.heard / FLOOD_S
    print(f">>> {rate:.0f} jobs enqueued a second, {per_s:.0f} notifications a second: {list(ear.by_second.values())}")
    assert rate > 2 * MOST_PER_S, "no flood: nothing to see here"
    assert per_s < MOST_PER_S
    left = db.value("select count(*)::int from supervisor.job")
    db.wait_for("select count(*)::int from supervisor.job", 0, 30 + left / 300)
    assert db.statuses().keys() == {"done"}
    db.wait_for("select count(*)::int from supervisor.waiting", 1, 40)
    [job_id] = enqueue(db, "t.effect")
    db.wait_for("select count(*)::int from effects where job_id = %s", 1, 5, [job_id])
    assert one.stop() == 0


@pytest.mark.timeout(600 if FULL else 120)
def test_wake_ups_slow_no_writer_down_and_can_be_turned_off(
    db: Database, server: Server, service: Start, orders: None
) -> None:
    """With SUPERVISOR_WAKE off nothing is notified and jobs are found by polling. At full size: commits reach the
    disk, and with wake-ups at least 80% as many as without, in slices that alternate."""
    rates: dict[bool, list[int]] = {True: [], False: []}
    done = {True: 0, False: 0}
    if FULL:
        server.execute("alter system set fsync = on")
        server.reload()
    try:
        for number in range(2 * SLICES):
            wake = number % 4 in (0, 3)
            one = service(processes=2, wake=wake)
            db.wait_for("select count(*)::int from supervisor.waiting", int(wake))
            with Ear(db) as ear:
                rates[wake].append(round(commits_per_s(server, db, WRITE, CLIENTS, SLICE_S)))
                done[wake] += db.value("select count(*)::int from supervisor.history")
                [job_id] = enqueue(db, "t.effect", priority=-1)
                db.wait_for("select count(*)::int from effects where job_id = %s", 1, 20, [job_id])
            assert (ear.heard > 0) == wake
            assert one.stop() == 0
            db.execute("truncate supervisor.job, supervisor.history, orders")
    finally:
        server.execute("alter system reset fsync")
        server.reload()
    means = {wake: sum(found) / len(found) for wake, found in rates.items()}
    share = means[True] / means[False]
    print(f">>> commits/s with wake-ups {rates[True]}, without {rates[False]}: {share:.0%}; jobs done meanwhile {done}")
    if FULL:
        assert share >= 0.8
