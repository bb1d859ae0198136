"""The inbox: of all that handle one event, exactly one that commits was the first."""

import threading
import uuid
from typing import Any

import pytest

from supervisor import inbox
from supervisor.errors import InvalidEvent
from tests.support.database import Database
from tests.support.waiting import wait_until

EVENT = uuid.UUID("4a4f34a1-0000-4000-8000-000000000001")


def test_the_second_time_is_not_fresh_and_other_consumers_have_their_own(db: Database) -> None:
    conn = db.connect()
    seen = []
    for consumer in ("a", "a", "b"):
        with inbox(conn, consumer, EVENT) as fresh:
            seen.append(fresh)
    with inbox(conn, "a", str(EVENT)) as fresh:
        seen.append(fresh)
    assert seen == [True, False, True, False]


async def test_the_same_on_an_async_connection(db: Database) -> None:
    async with await db.aconnect(autocommit=False) as conn:
        async with inbox(conn, "a", "e1") as fresh:
            assert fresh
        async with inbox(conn, "a", "e1") as fresh:
            assert not fresh
        assert db.value("select count(*)::int from supervisor.inbox") == 0, "it committed the caller's transaction"
        await conn.commit()
    assert db.value("select count(*)::int from supervisor.inbox") == 1


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_block_that_raises_takes_its_note_and_its_writes_back_and_only_them(db: Database, autocommit: bool) -> None:
    conn = db.connect(autocommit=autocommit)
    row = "insert into effects (job_id, kind, attempt, pid) values (%s, 'x', 1, 1)"
    conn.execute(row, [1])
    with pytest.raises(RuntimeError), inbox(conn, "a", EVENT) as fresh:
        assert fresh
        conn.execute(row, [2])
        raise RuntimeError
    with inbox(conn, "a", EVENT) as fresh:
        assert fresh
        conn.execute(row, [3])
    if not autocommit:
        conn.commit()
    assert db.rows("select job_id from effects order by 1") == [(1,), (3,)]


@pytest.mark.parametrize("commits", [True, False])
def test_one_that_handles_the_same_event_at_once_waits_for_the_other(db: Database, commits: bool) -> None:
    first, second = db.connect(autocommit=False), db.connect()
    seen: list[bool] = []

    def handle() -> None:
        with inbox(second, "a", EVENT) as fresh:
            seen.append(fresh)

    with inbox(first, "a", EVENT) as fresh:
        assert fresh
    other = threading.Thread(target=handle)
    other.start()
    waiting = (
        "select count(*)::int from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    )
    wait_until(lambda: db.value(waiting) == 1, what="the second waits for the first")
    if commits:
        first.commit()
    else:
        first.rollback()
    other.join(10)
    assert seen == [not commits]


def test_what_cannot_be_noted_is_refused_before_any_statement(db: Database) -> None:
    cases: list[tuple[str, Any, str]] = [
        ("", "e", "consumer"), ("x" * 129, "e", "consumer"), ("c", "", "event_id"), ("c", "e" * 513, "event_id"),
        ("c", "\x00", "event_id"), ("c", 7, "event_id"),
    ]  # fmt: skip
    conn = db.connect()
    for consumer, event_id, field in cases:
        with pytest.raises(InvalidEvent) as refused:
            inbox(conn, consumer, event_id)
        assert refused.value.field == field
