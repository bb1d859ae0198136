"""What is kept, for how long, and that cleaning up never stands in anybody's way (B37)."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from supervisor.db.statements import statement
from tests.support.database import Database
from tests.support.queue import Conn, Holder, close_session, enqueue, expire, reap, stored

DAY_S = 86400.0


def partitions(db: Database) -> list[str]:
    return [
        row[0]
        for row in db.rows(
            "select c.relname::text from pg_inherits i join pg_class c on c.oid = i.inhrelid"
            " where i.inhparent = 'supervisor.history'::regclass order by 1"
        )
    ]


def make_partitions(conn: Conn, days_ahead: int = 3) -> int:
    row = conn.execute(statement("make_partitions", "supervisor"), {"days_ahead": days_ahead}).fetchone()
    assert row is not None
    return int(row[0])


def drop_partitions(conn: Conn, keep_days: float = 7) -> list[str]:
    rows = conn.execute(statement("drop_partitions", "supervisor"), {"keep_s": keep_days * DAY_S}).fetchall()
    return [row[0] for row in rows]


def prune(conn: Conn, keep_history_days: float = 7, keep_dead_days: float = 30, limit: int = 1000) -> int:
    row = conn.execute(
        statement("prune", "supervisor"),
        {"keep_history_s": keep_history_days * DAY_S, "keep_dead_s": keep_dead_days * DAY_S, "limit": limit},
    ).fetchone()
    assert row is not None
    return int(row[0])


def make_old(db: Database, age_days: int) -> str:
    day = (datetime.now(UTC) - timedelta(days=age_days)).date()
    name = f"history_{day:%Y%m%d}"
    db.execute(
        f"create table supervisor.{name} partition of supervisor.history"
        f" for values from ('{day} 00:00+00') to ('{day + timedelta(days=1)} 00:00+00')"
    )
    return name


def finish(db: Database, count: int = 1, keep: int = 1) -> list[int]:
    holder = Holder(db)
    enqueue(holder.conn, count)
    jobs = holder.claim(count).jobs
    assert holder.ack(*jobs, keep=keep).acked == count
    return [job.id for job in jobs]


# -- history ------------------------------------------------------------------------------------


@pytest.mark.pg("15", "16", "18")
def test_partitions_are_made_ahead_once_whatever_the_time_zone(db: Database) -> None:
    conn = db.connect()
    conn.execute("set timezone = 'Pacific/Kiritimati'")
    today = db.value("select (clock_timestamp() at time zone 'UTC')::date")
    wanted = [f"history_{today + timedelta(days=n):%Y%m%d}" for n in range(6)]
    make_partitions(conn, 5)
    assert partitions(db) == [*wanted, "history_default"]
    assert make_partitions(conn, 5) == 0
    conn.execute("set timezone = 'America/Adak'")
    assert make_partitions(conn, 5) == 0


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_an_ack_keeps_what_it_is_told_to(db: Database, keep: int) -> None:
    holder = Holder(db)
    enqueue(holder.conn, 2, payload='{"a": 1}', headers='{"h": 1}')
    first, second = holder.claim(2).jobs
    holder.ack(first, keep=keep)
    holder.settle(second, "done", keep=keep)  # as the parent does for a worker that died
    for job in (first, second):
        found = stored(db, job.id)
        if keep == 0:
            assert found == {}
        else:
            assert (found["status"], found["attempts"], found["claims"]) == ("done", 1, 1)
            assert (found["payload"], found["headers"]) == ((({"a": 1}, {"h": 1})) if keep == 2 else (None, None))
            assert found["finished_at"] >= found["started_at"]


def test_an_ack_succeeds_without_a_partition_for_its_day(db: Database) -> None:
    """The default partition takes it, and pruning takes it from there by age."""
    for name in partitions(db):
        if name != "history_default":
            db.execute(f"drop table supervisor.{name}")
    [job] = finish(db)
    assert stored(db, job)["status"] == "done"
    assert db.value("select tableoid::regclass::text from supervisor.history") == "supervisor.history_default"
    conn = db.connect()
    # Today cannot be carved out of the default partition any more; the days ahead can.
    assert make_partitions(conn, 2) == 2
    assert prune(conn) == 0
    db.execute("update supervisor.history set finished_at = finished_at - interval '8 days'")
    assert prune(conn) == 1
    assert make_partitions(conn, 2) == 1


def test_partitions_past_their_age_are_dropped_one_by_one_and_no_others(db: Database) -> None:
    old = sorted(make_old(db, age) for age in (9, 30, 400))
    kept = [make_old(db, age) for age in (1, 7)]
    db.execute("create table supervisor.history_20010101 (x int)")  # not a partition: somebody's own
    conn = db.connect()
    assert [drop_partitions(conn) for _ in range(4)] == [[old[0]], [old[1]], [old[2]], []]
    assert set(kept) < set(partitions(db))
    assert db.value("select to_regclass('supervisor.history_20010101') is not null")


@pytest.mark.pg("15", "16", "18")
def test_a_reader_of_the_history_stops_neither_acks_nor_the_next_drop(db: Database) -> None:
    """A drop that waited for a dump queued every ack behind it: it gives up and comes again."""
    name = make_old(db, 9)
    reader = db.connect(autocommit=False)
    reader.execute("select count(*) from supervisor.history")
    conn = db.connect()
    with pytest.raises(psycopg.errors.LockNotAvailable):
        drop_partitions(conn)
    assert make_partitions(conn, 20) == 0
    assert len(finish(db, 5)) == 5
    reader.rollback()
    assert drop_partitions(conn) == [name]
    before = len(partitions(db))
    assert make_partitions(conn, 20) == 22 - before > 0


def test_acks_go_on_while_drops_try_again_and_again(db: Database) -> None:
    make_old(db, 9)
    reader = db.connect(autocommit=False)
    reader.execute("select count(*) from supervisor.history")
    stop = threading.Event()
    refused: list[str] = []

    def drop() -> None:
        conn = db.connect()
        while not stop.is_set():
            try:
                assert drop_partitions(conn) == []
            except psycopg.errors.LockNotAvailable as error:
                refused.append(str(error.sqlstate))

    with ThreadPoolExecutor(1) as pool:
        dropping = pool.submit(drop)
        try:
            for _ in range(20):
                finish(db)
        finally:
            stop.set()
        dropping.result(10)
    assert refused
    assert db.value("select count(*)::int from supervisor.history") == 20


# -- helper tables ------------------------------------------------------------------------------


def test_dead_and_cancelled_jobs_are_kept_for_thirty_days(db: Database) -> None:
    holder = Holder(db)
    enqueue(holder.conn, 4)
    jobs = holder.claim(4).jobs
    holder.settle(jobs[:2], "dead")
    db.rows("select * from supervisor.cancel_job(%s)", [[job.id for job in jobs[2:]]])
    holder.settle(jobs[2:], "failed")
    db.execute("update supervisor.dead_letter set finished_at = now() - interval '29 days'")
    assert prune(holder.conn) == 0
    gone = [jobs[0].id, jobs[2].id]
    db.execute("update supervisor.dead_letter set finished_at = now() - interval '31 days' where id = any(%s)", [gone])
    assert prune(holder.conn) == 2
    assert [stored(db, job.id).get("status") for job in jobs] == [None, "dead", None, "cancelled"]
    assert db.rows("select supervisor.retry_job(%s)", [[job.id for job in jobs]]) == [(jobs[1].id,), (jobs[3].id,)]


def test_pruning_goes_in_batches_until_nothing_is_left(db: Database) -> None:
    db.execute(
        "insert into supervisor.history_default (id, finished_at, run_at, created_at, claims, attempts, max_attempts,"
        " crashes, max_crashes, priority, queue, kind) select n, '2020-01-01', now(), now(), 1, 1, 20, 0, 3, 0,"
        " 'q', 'k' from generate_series(1, 2500) n"
    )
    enqueue(db.connect(), 3)
    holder = Holder(db)
    holder.settle(holder.claim(3).jobs, "dead")
    db.execute("update supervisor.dead_letter set finished_at = '2020-01-01'")
    conn = db.connect()
    conn.execute("set statement_timeout = '5s'")
    assert [prune(conn) for _ in range(4)] == [1003, 1000, 500, 0]


def test_a_dead_letter_that_an_operator_holds_is_passed_by(db: Database) -> None:
    first, second = enqueue(db.connect(), 2)
    holder = Holder(db)
    holder.settle(holder.claim(2).jobs, "dead")
    db.execute("update supervisor.dead_letter set finished_at = '2020-01-01'")
    operator = db.connect(autocommit=False)
    assert operator.execute("select supervisor.retry_job(%s)", [[first]]).fetchall() == [(first,)]
    conn = db.connect()
    conn.execute("set lock_timeout = '5s'")
    assert prune(conn) == 1
    operator.commit()
    assert [stored(db, job).get("status") for job in (first, second)] == ["queued", None]


def test_closed_sessions_are_kept_for_an_hour_and_open_ones_for_ever(db: Database) -> None:
    living, ended, reaped = Holder(db), Holder(db), Holder(db)
    close_session(ended.conn, ended.session)
    expire(db, reaped.session)
    reap(reaped.conn)
    conn = db.connect()
    assert prune(conn) == 0
    db.execute("update supervisor.session set closed_at = closed_at - interval '61 min', opened_at = '2020-01-01'")
    assert prune(conn) == 2
    assert db.rows("select id from supervisor.session") == [(living.session,)]


def _beat(db: Database, parent: int, waiting: bool) -> None:
    params: dict[str, Any] = {
        "id": parent, "name": "n", "host": "h", "pid": 1, "version": "1", "state": "ready", "detail": "{}",
        "ttl_s": 60.0, "waiting": waiting,
    }  # fmt: skip
    db.connect().execute(statement("parent_beat", "supervisor"), params)


def test_a_supervisor_that_is_gone_asks_for_no_more_wake_ups(db: Database) -> None:
    """Its row in `waiting` would make every writer notify for ever."""
    for parent in (1, 2, 3):
        _beat(db, parent, True)
    _beat(db, 3, False)
    assert db.rows("select parent from supervisor.waiting order by 1") == [(1,), (2,)]
    db.execute("update supervisor.parent set expires_at = now() - interval '1 s' where id = 1")
    db.execute("update supervisor.parent set expires_at = now() - interval '2 h' where id = 3")
    conn = db.connect()
    prune(conn)
    assert db.rows("select parent from supervisor.waiting") == [(2,)]
    assert db.rows("select id from supervisor.parent order by 1") == [(1,), (2,)]
    conn.execute(statement("parent_gone", "supervisor"), {"id": 2})
    assert db.rows("select id from supervisor.parent") == [(1,)]
    assert db.rows("select parent from supervisor.waiting") == []
