"""An old snapshot elsewhere keeps every dead row; claims must not walk over them (B22, in small)."""

import pytest

from supervisor.db.jobs import Lane, Mark
from tests.db.test_plans import buffers, scans
from tests.support.database import Database
from tests.support.queue import new_session_id, open_session, work
from tests.support.queues import limit

LANE = Lane("default", 0)
JOBS = 20_000


@pytest.mark.pg("15", "16", "18")
def test_a_claim_costs_the_same_after_twenty_thousand_jobs_under_a_pin(db: Database) -> None:
    """Pages per claim, first against last; a claim without a mark shows what it is spared."""
    db.execute("alter table supervisor.job set (autovacuum_enabled = off)")
    pin = db.connect(autocommit=False)
    pin.execute("set transaction isolation level repeatable read")
    pin.execute("select count(*) from supervisor.job")
    conn = db.connect()
    session = new_session_id()
    open_session(conn, session)
    marks: dict[Lane, Mark] = {}

    def enqueue(count: int) -> None:
        db.execute("insert into supervisor.job (kind) select 'k' from generate_series(1, %s)", [count])

    def cost() -> int:
        enqueue(10)
        return buffers(conn, lambda to: work(to, session, 10, marks=marks))

    def drain() -> None:
        held = work(conn, session, 100, marks=marks)
        while held.jobs:
            marks.update(held.marks)
            held = work(conn, session, 100, acks=held.jobs, marks=marks)

    enqueue(300)
    drain()
    first = [cost() for _ in range(5)]
    for _ in range(JOBS // 2000):
        enqueue(2000)
        drain()
    before = scans(conn)
    last = [cost() for _ in range(5)]
    assert scans(conn) == before
    assert max(last) <= 2 * max(first) + 20, (first, last)
    assert max(last) < 500
    enqueue(1)
    without = buffers(conn, lambda to: work(to, session, 1))
    assert without > 5 * max(last), "the pin keeps nothing alive: this test shows nothing"


@pytest.mark.pg("15", "18")
def test_a_claim_of_a_queue_with_a_limit_costs_the_same_under_a_pin(db: Database) -> None:
    """Each claim writes who has the places; under a pin all that was ever written stays, and is not read."""
    db.execute("alter table supervisor.job set (autovacuum_enabled = off)")
    db.execute("alter table supervisor.place set (autovacuum_enabled = off)")
    limit(db, 1, "default")
    pin = db.connect(autocommit=False)
    pin.execute("set transaction isolation level repeatable read")
    pin.execute("select count(*) from supervisor.job")
    conn = db.connect()
    session = new_session_id()
    open_session(conn, session)
    marks: dict[Lane, Mark] = {}

    def drain(jobs: int) -> list[int]:
        """Run so many jobs, one at a time; the pages that some of the claims touched."""
        measured = 5  # claims whose pages are counted; each takes a job more
        db.execute("insert into supervisor.job (kind) select 'k' from generate_series(1, %s)", [jobs + measured])
        costs = []
        held = work(conn, session, 10, marks=marks)
        for number in range(1, jobs):
            assert len(held.jobs) == 1
            marks.update(held.marks)
            if number % (jobs // measured) == 0:
                work(conn, session, 0, acks=held.jobs)
                costs.append(buffers(conn, lambda to: work(to, session, 10, marks=marks)))
                [(job, token)] = db.rows("select id, claims from supervisor.job where lease is not null")
                db.execute("delete from supervisor.job where id = %s and claims = %s", [job, token])
                held = work(conn, session, 10, marks=marks)
            else:
                held = work(conn, session, 10, acks=held.jobs, marks=marks)
        work(conn, session, 0, acks=held.jobs)
        db.execute("delete from supervisor.job")
        return costs

    first = drain(100)
    for _ in range(3):
        drain(1000)
    last = drain(100)
    assert max(last) <= 2 * max(first) + 20, (first, last)
    kept = db.value("select pg_relation_size('supervisor.place')")
    assert kept > 30 * 8192, "the pin keeps nothing alive: this test shows nothing"
