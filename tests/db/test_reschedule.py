"""An operator gives queued jobs another time: only queued ones, never out of sight, never in a worker's way."""

import threading
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg.types.json import Jsonb

from supervisor.db.jobs import Lane
from tests.support.database import Database
from tests.support.queue import DEFAULT, Holder, enqueue, stored
from tests.support.waiting import wait_until

MOVE = "select id, run_at from supervisor.reschedule_job(%s, %s, %s)"


def test_only_queued_jobs_are_moved(db: Database) -> None:
    conn = db.connect()
    queued, running, dead = enqueue(conn, 3)
    worker = Holder(db)
    claimed = worker.claim(2)
    worker.settle(claimed.jobs[0], "released")
    conn.execute("select supervisor.bury(%s, 'dead', 'attempts')", [dead])
    before = stored(db, running)

    moved = db.rows(MOVE, [[queued, running, dead, 999], None, timedelta(hours=1)])

    [(job_id, run_at)] = moved
    assert job_id == queued
    assert timedelta(minutes=59) < run_at - datetime.now(UTC) <= timedelta(minutes=60)
    assert stored(db, running) == before
    assert stored(db, dead)["status"] == "dead"
    assert worker.settle(claimed.jobs[1], "failed", delay_s=0)[running][0] == "queued", "its lease was not touched"


def test_a_job_that_is_moved_keeps_its_counts(db: Database) -> None:
    conn = db.connect()
    [job_id] = enqueue(conn, unique_key="k", priority=-3)
    worker = Holder(db)
    worker.settle(worker.claim(lanes=[Lane("default", -3)]).jobs, "failed", error="E")
    before = stored(db, job_id)
    db.rows(MOVE, [[job_id], datetime(2031, 1, 2, tzinfo=UTC), None])
    after = stored(db, job_id)
    assert after.pop("run_at").startswith("2031-01-02")
    before.pop("run_at")
    *kept, noted = after.pop("errors")
    assert (noted["event"], noted["to"][:10], kept) == ("rescheduled", "2031-01-02", before.pop("errors"))
    assert after == before


@pytest.mark.parametrize("at", [None, datetime(1990, 1, 1, tzinfo=UTC)])
def test_now_is_above_every_mark(db: Database, at: datetime | None) -> None:
    """A worker whose low-water mark lies as far up as it can finds a job that was moved to now."""
    conn = db.connect()
    worker = Holder(db)
    enqueue(conn, 3)
    claim = worker.claim(3)
    [job_id] = enqueue(conn, delay="1 hour")
    assert worker.claim(marks=claim.marks).ids == []

    db.rows(MOVE, [[job_id], at, None])

    assert worker.claim(marks=claim.marks, lookback_s=0.25).ids == [job_id]


def test_waiting_supervisors_are_told_where_to_look(db: Database) -> None:
    listener = db.connect()
    listener.execute("listen supervisor")
    conn = db.connect()
    jobs = enqueue(conn, 2, queue="mail", priority=7, delay="1 hour") + enqueue(conn, queue="web", delay="1 hour")
    db.execute("insert into supervisor.waiting values (1)")

    db.rows(MOVE, [jobs, None, None])

    heard = sorted(notice.payload for notice in listener.notifies(timeout=2, stop_after=2))
    assert ['"queue" : "mail"' in heard[0], '"queue" : "web"' in heard[1]] == [True, True]
    assert "[7]" in heard[0]


def test_a_job_that_is_being_claimed_is_left_alone(db: Database) -> None:
    """The claim that came first wins: the order waits for it and finds the job running."""
    [job_id] = enqueue(db.connect())
    claimer = db.connect(autocommit=False)
    claimer.execute("update supervisor.job set lease = 5, claims = claims + 1 where id = %s", [job_id])
    answers: list[list[tuple[object, ...]]] = []
    order = db.connect()
    thread = threading.Thread(target=lambda: answers.append(order.execute(MOVE, [[job_id], None, None]).fetchall()))
    thread.start()
    blocked = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    wait_until(lambda: db.value(blocked) == 1, 10, "the order waits for the claim")
    claimer.commit()
    thread.join(10)
    assert answers == [[]]


def test_a_claim_steps_over_a_job_that_is_being_moved(db: Database) -> None:
    first, second = enqueue(db.connect(), 2)
    order = db.connect(autocommit=False)
    order.execute(MOVE, [[first], None, timedelta(hours=1)])
    assert Holder(db).claim(5).ids == [second], "it neither waits nor takes the moved one"
    order.commit()


def test_a_parked_job_and_bad_times_are_refused(db: Database) -> None:
    [parked] = enqueue(db.connect())
    db.execute("alter table supervisor.job drop constraint job_times_check")
    db.execute("update supervisor.job set run_at = 'infinity'")
    assert db.rows(MOVE, [[parked], None, None]) == []
    for at, delay in (
        (datetime(2030, 1, 1, tzinfo=UTC), timedelta(1)),
        (None, timedelta(days=9_000 * 366)),
    ):
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            db.rows(MOVE, [[parked], at, delay])


def test_many_keyed_jobs_and_bulks_of_producers_do_not_deadlock(db: Database) -> None:
    """Both take rows in the order of keys."""
    conn = db.connect()
    keys = [f"k{n:03}" for n in range(200)]
    ids = [enqueue(conn, unique_key=key, delay="1 hour")[0] for key in reversed(keys)]
    jobs = [{"kind": "k", "unique_key": key, "on_conflict": "replace", "delay": 3600} for key in keys]
    failed: list[Exception] = []

    def replace() -> None:
        with psycopg.connect(db.conninfo, autocommit=True) as own:
            for _ in range(10):
                own.execute("select * from supervisor.enqueue_many(%s)", [Jsonb(jobs)])

    def move() -> None:
        with psycopg.connect(db.conninfo, autocommit=True) as own:
            for _ in range(10):
                own.execute(MOVE, [ids, None, timedelta(hours=1)])

    def guarded(work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=[work]) for work in (replace, move, replace, move)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert set(db.rows("select queue from supervisor.lane")) <= {(lane.queue,) for lane in DEFAULT}
