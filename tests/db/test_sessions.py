"""Sessions: who may hold a job, what a closed one may still do (nothing), and what its jobs are charged."""

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from supervisor.db import jobs
from supervisor.db.house import HouseConnection
from supervisor.db.jobs import Ack, Mark
from supervisor.outcome import Outcome
from tests.support.database import Database
from tests.support.queue import (
    Conn,
    Held,
    Holder,
    close_session,
    enqueue,
    expire,
    move_session,
    new_session_id,
    open_session,
    reap,
    renew,
    settle,
    stored,
    sweep,
    work,
)

LOW = Mark()
WAITS_FOR_LOCK = "select wait_event_type from pg_stat_activity where pid = %s"


def until_blocked(db: Database, conn: Conn | psycopg.AsyncConnection[Any]) -> None:
    db.wait_for(WAITS_FOR_LOCK, "Lock", params=[conn.info.backend_pid])


# -- closed for good ----------------------------------------------------------------------------


@pytest.mark.parametrize("closed_as", ["ended", "reaped", "missing"])
def test_a_closed_session_can_neither_claim_nor_acknowledge_nor_come_back(db: Database, closed_as: str) -> None:
    enqueue(db.connect(), 2)
    holder = Holder(db)
    [held] = holder.claim(1).jobs
    if closed_as == "ended":
        close_session(holder.conn, holder.session)
    elif closed_as == "reaped":
        expire(db, holder.session)
        assert reap(holder.conn) == {holder.session}
    else:
        db.execute("delete from supervisor.session")
    for acks in ([], [held]):
        with pytest.raises(psycopg.Error, match="is closed") as error:
            holder.claim(1, acks=acks)
        assert error.value.sqlstate == "QS001"
    assert renew(holder.conn, [holder.session]) == set()
    if closed_as != "missing":
        open_session(holder.conn, holder.session)  # as a late repeat of the first statement would
    assert stored(db, held.id)["status"] == "running"
    assert sweep(holder.conn) == {held.id: ("released" if closed_as == "ended" else "crashed", "queued")}
    # What it says after its jobs went elsewhere is too late too.
    assert settle(holder.conn, holder.session, [held], "failed") == {}
    assert stored(db, held.id)["attempts"] == 0


def test_an_expired_session_lives_until_it_is_reaped(db: Database) -> None:
    """A parent that comes back in time loses nothing."""
    enqueue(db.connect())
    holder = Holder(db)
    [held] = holder.claim(1).jobs
    expire(db, holder.session)
    assert renew(holder.conn, [holder.session, 77]) == {holder.session}
    assert reap(holder.conn) == set()
    assert holder.ack(held).acked == 1


def test_of_a_renewal_and_a_reaping_exactly_one_wins(db: Database) -> None:
    holder = Holder(db)
    other = db.connect()
    for renewal_first in (True, False):
        session = new_session_id()
        open_session(holder.conn, session)
        expire(db, session)
        holder.conn.autocommit = False
        with ThreadPoolExecutor(1) as pool:
            if renewal_first:
                assert renew(holder.conn, [session]) == {session}
                assert reap(other) == set()  # skips what it finds locked
                holder.conn.commit()
                assert reap(other) == set()
            else:
                assert reap(holder.conn) == {session}
                late: Future[set[int]] = pool.submit(renew, other, [session])
                until_blocked(db, other)
                holder.conn.commit()
                assert late.result(10) == set()
        holder.conn.autocommit = True


def test_a_moved_session_carries_what_it_names_and_leaves_the_rest_to_the_sweep(db: Database) -> None:
    """The answer to a claim was lost: what the worker does not know of goes back untouched."""
    enqueue(db.connect(), 3)
    holder = Holder(db)
    known = holder.claim(2).jobs
    [lost] = holder.claim(1).jobs
    new = new_session_id()
    stale = known[1]._replace(token=known[1].token + 1)
    assert move_session(holder.conn, holder.session, new, [known[0], stale]) == {known[0].id}
    # Its own answer was lost as well: the same again says the same.
    assert move_session(holder.conn, holder.session, new, [known[0], stale]) == {known[0].id}
    assert sweep(holder.conn) == {known[1].id: ("released", "queued"), lost.id: ("released", "queued")}
    assert work(holder.conn, new, 0, acks=[known[0]]).acked == 1
    for job in (known[1], lost):
        assert (stored(db, job.id)["attempts"], stored(db, job.id)["crashes"]) == (0, 0)


def test_a_session_that_was_reaped_cannot_move_its_jobs_away(db: Database) -> None:
    enqueue(db.connect())
    holder = Holder(db)
    [held] = holder.claim(1).jobs
    expire(db, holder.session)
    reap(holder.conn)
    assert move_session(holder.conn, holder.session, new_session_id(), [held]) == set()
    assert sweep(holder.conn) == {held.id: ("crashed", "queued")}


# -- what the sweep charges ---------------------------------------------------------------------


def test_jobs_of_an_ended_session_go_back_untouched_to_where_workers_look(db: Database) -> None:
    [job] = enqueue(db.connect())
    holder = Holder(db)
    holder.claim(1)
    close_session(holder.conn, holder.session)
    front = "2026-01-01 00:00:00.000000+00"
    assert sweep(holder.conn, front=front) == {job: ("released", "queued")}
    found = stored(db, job)
    assert (found["attempts"], found["crashes"], found["last_error"], found["suspect"]) == (0, 0, None, False)
    assert db.value("select run_at = %s::timestamptz from supervisor.job", [front])


@pytest.mark.parametrize("gone", ["reaped", "missing"])
def test_jobs_of_a_lost_session_are_charged_a_crash_each_time_and_buried_at_the_limit(db: Database, gone: str) -> None:
    """Recovery does not depend on the session's row (B15)."""
    [job] = enqueue(db.connect(), max_crashes=3)
    for crash in (1, 2, 3):
        holder = Holder(db)
        db.execute("update supervisor.job set run_at = now() - interval '1 s'")
        assert holder.claim(1).ids == [job]
        if gone == "reaped":
            expire(db, holder.session)
            reap(holder.conn)
        else:
            db.execute("delete from supervisor.session")
        assert sweep(holder.conn) == {job: ("crashed", "dead" if crash == 3 else "queued")}
        assert sweep(holder.conn) == {}
        found = stored(db, job)
        assert (found["attempts"], found["crashes"]) == (0, crash)
        assert "lease passed" in found["last_error"]
    assert (found["status"], found["reason"], len(found["errors"])) == ("dead", "crashes", 3)


def test_a_sweep_touches_its_range_only_and_no_more_than_its_limit(db: Database) -> None:
    ids = enqueue(db.connect(), 6)
    holder = Holder(db)
    holder.claim(6)
    db.execute("delete from supervisor.session")
    marks = {
        row[0]: Mark(row[1], row[0])
        for row in db.rows(
            """select id, to_char(run_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US"+00"') from supervisor.job"""
        )
    }
    assert set(sweep(holder.conn, lo=marks[ids[1]], hi=marks[ids[4]], limit=2)) == set(ids[1:3])
    assert set(sweep(holder.conn, lo=marks[ids[1]], hi=marks[ids[4]], limit=2)) == {ids[3]}
    assert set(sweep(holder.conn)) == {ids[0], ids[4], ids[5]}


def test_a_sweep_with_a_front_moves_queued_rows_and_without_one_leaves_them(db: Database) -> None:
    [job] = enqueue(db.connect())
    conn = db.connect()
    assert sweep(conn) == {}
    assert sweep(conn, front="2026-01-01 00:00:00.000001+00") == {job: ("moved", "queued")}
    assert stored(db, job)["attempts"] == 0


# -- races --------------------------------------------------------------------------------------


@pytest.mark.pg("15", "16", "18")
def test_a_sweep_that_began_before_a_session_opened_does_not_take_its_lease(db: Database) -> None:
    """A sweep re-checks a row that changed under it with the sessions of its own, older snapshot.

    Deciding by that steals a live lease. Reproduced here: the sweep's scan has begun (it waits in a
    function that the test puts in its way), a fresh session opens and claims, then the sweep goes on.
    """
    # A job of a lost session makes the sweep's scan reach the next one after the pause.
    first, second = enqueue(db.connect(), 2)
    lost = Holder(db)
    assert lost.claim(2).ids == [first, second]
    db.execute("delete from supervisor.session")
    gate = db.connect()
    gate.execute("select pg_advisory_lock(1)")
    # Whoever looks at the sessions waits for the gate first.
    db.execute("alter table supervisor.session rename to session_rows")
    db.execute(
        "create function pause() returns setof supervisor.session_rows language plpgsql as"
        " $$ begin perform pg_advisory_xact_lock_shared(1); return; end $$"
    )
    db.execute(
        "create view supervisor.session as select * from supervisor.session_rows union all select * from pause()"
    )
    fresh, sweeper = db.connect(), db.connect()
    session = new_session_id()
    with ThreadPoolExecutor(1) as pool:
        swept = pool.submit(sweep, sweeper)
        until_blocked(db, sweeper)
        # Meanwhile the second job goes back and a worker that has just started claims it.
        db.execute(
            "insert into supervisor.session_rows (id, expires_at) values (%s, now() + interval '1 h')", [session]
        )
        fresh.execute("update supervisor.job set lease = %s, claims = claims + 1 where id = %s", [session, second])
        gate.execute("select pg_advisory_unlock(1)")
        result = swept.result(10)
    assert second not in result
    assert db.value("select lease = %s from supervisor.job where id = %s", [session, second])


@pytest.mark.pg("15", "16", "18")
def test_sweeps_racing_claims_of_fresh_sessions_never_take_a_live_lease(db: Database) -> None:
    """The same by force: 300 short-lived sessions claim and release while two sweeps run without pause."""
    enqueue(db.connect(), 3)
    stop = threading.Event()
    swept: list[int] = []

    def sweeper() -> None:
        conn = db.connect()
        while not stop.is_set():
            swept.extend(sweep(conn))

    def worker(_: int) -> None:
        conn = db.connect()
        for _ in range(150):
            session = new_session_id()
            open_session(conn, session)
            for job in work(conn, session, 2).jobs:
                assert set(settle(conn, session, [job], "released")) == {job.id}
            close_session(conn, session)

    with ThreadPoolExecutor(4) as pool:
        sweepers = [pool.submit(sweeper) for _ in range(2)]
        try:
            for future in [pool.submit(worker, number) for number in range(2)]:
                future.result()
        finally:
            stop.set()
        for one in sweepers:
            one.result()
    assert swept == []
    assert db.value("select sum(crashes)::int from supervisor.job") == 0


def _wait_behind(db: Database, blocker_sql: str, params: list[object]) -> psycopg.Connection[Any]:
    blocker = db.connect(autocommit=False)
    blocker.execute(blocker_sql.encode(), params)
    return blocker


@pytest.mark.parametrize("how", ["acks", "settlements", "a move"])
async def test_a_cancel_and_the_end_of_the_same_runs_cannot_deadlock(db: Database, how: str) -> None:
    """Everything takes its rows in the order of ids. Acks came in the order of completion once."""
    enqueue(db.connect(), 2)
    holder = Holder(db)
    first, second = holder.claim(2).jobs
    async with await HouseConnection.connect(db.conninfo, autocommit=True) as conn:
        blocker = _wait_behind(db, "select from supervisor.job where id = %s for update", [first.id])
        cancelling = db.connect()
        cancel = asyncio.create_task(
            asyncio.to_thread(
                lambda: cancelling.execute(
                    "select what from supervisor.cancel_job(%s)", [[first.id, second.id]]
                ).fetchall()
            )
        )
        await asyncio.to_thread(until_blocked, db, cancelling)
        ending = asyncio.create_task(_end(conn, how, holder.session, [second, first]))
        await asyncio.to_thread(until_blocked, db, conn)
        blocker.rollback()
        assert await cancel == [("asked",), ("asked",)]
        assert await ending == 2


async def _end(conn: HouseConnection, how: str, session: int, held: list[Held]) -> int:
    if how == "acks":
        acks = [Ack(job.id, job.token, 0.1) for job in held]
        return (await jobs.work(conn, "supervisor", session=session, acks=acks, keep=1)).acked
    if how == "settlements":
        settlements = [jobs.Settlement(job.id, job.token, Outcome("released")) for job in held]
        done = await jobs.settle(
            conn, "supervisor", session=session, settlements=settlements, keep=1, unknown_limit_s=1.0
        )
        return len(done)
    moved = await jobs.move_session(
        conn,
        "supervisor",
        old=session,
        new=new_session_id(),
        parent=1,
        name="w",
        lease_s=60,
        held=[(job.id, job.token) for job in held],
    )
    return len(moved)


def test_a_job_that_a_transaction_replaces_is_stepped_over_not_waited_for(db: Database) -> None:
    """A long transaction of a producer holds up neither claims, nor acks, nor the sweep."""
    [keyed] = enqueue(db.connect(), unique_key="k")
    [plain] = enqueue(db.connect())
    producer = db.connect(autocommit=False)
    assert enqueue(producer, unique_key="k", on_conflict="replace") == [keyed]
    holder = Holder(db)
    holder.conn.execute("set lock_timeout = '5s'")
    claim = holder.claim(2)
    assert claim.ids == [plain]
    assert sweep(holder.conn, front="2026-01-01 00:00:00.000001+00") == {}
    assert holder.ack(*claim.jobs).acked == 1
    producer.commit()
    assert holder.claim(2).ids == [keyed]


def test_a_replacement_that_waited_for_a_claim_leaves_the_running_job_alone(db: Database) -> None:
    [job] = enqueue(db.connect(), unique_key="k", kind="old")
    holder = Holder(db)
    holder.conn.autocommit = False
    claim = holder.claim(1)
    assert claim.ids == [job]
    producer = db.connect(autocommit=False)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(enqueue, producer, unique_key="k", kind="new", on_conflict="replace")
        until_blocked(db, producer)
        holder.conn.commit()
        assert answer.result(10) == [job]
        assert (stored(db, job)["kind"], stored(db, job)["status"]) == ("old", "running")
        # Nor does it hold up the end of the run for as long as its own transaction lasts.
        holder.conn.autocommit = True
        holder.conn.execute("set lock_timeout = '3s'")
        assert holder.ack(*claim.jobs).acked == 1
        producer.commit()
