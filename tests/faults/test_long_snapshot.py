"""A long transaction elsewhere in the database keeps every dead row alive: the queue goes on at its rate (B22).

the rate of a backlog --pin for minutes of steady load--> the rate again --pin ends--> figures as before
"""

import asyncio
import time
from collections.abc import Callable

import pytest

from supervisor.client import enqueue_many
from supervisor.db.health import TableHealth, table_health
from supervisor.newjob import NewJob
from tests.faults.test_outages import Load, wait_out
from tests.support.database import Database
from tests.support.fault_handlers import MODULES
from tests.support.service import Service
from tests.support.sizes import FULL
from tests.support.waiting import wait_until

Start = Callable[..., Service]
PER_S, HELD_S = (800, 300.0) if FULL else (300, 4.0)
BACKLOG, BACKLOGS = (10_000, 5) if FULL else (1000, 1)
NORMAL_AGAIN_S = 120.0
DEAD_ROWS = "select n_dead_tup from pg_stat_user_tables where relid = 'supervisor.job'::regclass"


def throughput(db: Database, one: Service) -> float:
    """The rate of this service: the best of some, since the machine has other things to do."""
    return max(_throughput(db, one) for _ in range(BACKLOGS))


def _throughput(db: Database, one: Service) -> float:
    """Jobs a second that are done while a backlog is worked off, the steady load included.

    Counted by the service's own metric: counting rows would read all that the pin keeps, again and again.
    """

    def done() -> float:
        return one.metric("supervisor_jobs_total", outcome="done")

    with db.connect() as conn:
        before, began = done(), time.monotonic()
        enqueue_many(conn, [NewJob("t.noop")] * BACKLOG)
    wait_until(lambda: done() >= before + BACKLOG, 120, "the backlog is worked off")
    return (done() - before) / (time.monotonic() - began)


def shown_age(service: Service) -> float:
    return service.metric("supervisor_oldest_snapshot_seconds", owner="session")


async def look(db: Database) -> TableHealth:
    async with await db.aconnect() as conn:
        return await table_health(conn, db.schema)


@pytest.mark.timeout(900 if FULL else 120)
def test_a_long_transaction_elsewhere_does_not_slow_the_queue(db: Database, service: Start) -> None:
    """The oldest snapshot is told with its age and its owner. What a claim costs in pages: db/test_pinned.py."""
    one = service(handlers=MODULES, processes=2, concurrency=10, watch_every_s=0.5)
    throughput(db, one)  # connections are open, plans are made
    pin = db.connect(autocommit=False, application_name="nightly report")
    pin.execute("set transaction isolation level repeatable read")
    pin.execute("select count(*) from supervisor.job")
    held = time.monotonic()
    load = Load(db, PER_S, "t.noop")
    load.start()
    wait_out(2.0)
    first = throughput(db, one)
    wait_out(held + HELD_S - time.monotonic())
    last = throughput(db, one)
    dead = db.value(DEAD_ROWS)
    age = time.monotonic() - held
    wait_until(lambda: shown_age(one) >= age, 20, "a metric tells the age of the oldest snapshot, and whose it is")
    oldest = asyncio.run(look(db)).oldest
    assert oldest is not None
    assert (oldest.name, oldest.pid) == ("nightly report", pin.info.backend_pid), "as page and doctor show it"
    pin.rollback()
    ended = time.monotonic()
    wait_until(lambda: shown_age(one) < age / 2, NORMAL_AGAIN_S, "it is not told any more")
    if FULL:
        wait_until(
            lambda: db.value(DEAD_ROWS) < 20_000, NORMAL_AGAIN_S - (time.monotonic() - ended), "dead rows are gone"
        )
    after = _throughput(db, one)
    while FULL and after < 0.8 * first:  # vacuum, and what else the machine does, may still be at work
        assert time.monotonic() - ended < NORMAL_AGAIN_S, (
            f"{after:.0f}/s {NORMAL_AGAIN_S:g} s later, once {first:.0f}/s"
        )
        wait_out(2.0)
        after = _throughput(db, one)
    normal_in = time.monotonic() - ended
    jobs = load.stop()
    db.wait_for("select count(*)::int from supervisor.job", 0, 60)
    assert db.statuses().keys() == {"done"}
    print(
        f">>> {len(jobs)} jobs; throughput {first:.0f}/s, after {HELD_S:g} s {last:.0f}/s with {dead} dead rows; "
        f"as before {normal_in:.0f} s later: {after:.0f}/s"
    )
    if FULL:
        assert last >= 0.7 * first
    assert one.stop() == 0
