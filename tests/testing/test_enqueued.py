"""supervisor.testing.assert_enqueued: what the caller's transaction sees, and words that help."""

import uuid
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine

from supervisor import enqueue, handler
from supervisor.errors import InvalidJob
from supervisor.testing import assert_enqueued
from tests.support.database import Database
from tests.support.libraries import Async


@pytest.fixture
def conn(shop: Database) -> psycopg.Connection[Any]:
    return shop.connect(autocommit=False)


def test_it_finds_what_the_transaction_sees(conn: psycopg.Connection[Any], shop: Database) -> None:
    enqueue(conn, "mail", {"user_id": 7, "opts": {"lang": "en", "cc": [1, 2]}}, queue="email", unique_key="k")
    enqueue(conn, "mail", {"user_id": 8})
    [job] = assert_enqueued(conn, "mail", {"user_id": 7}, count=1, queue="email", unique_key="k")
    assert (job.queue, job.payload["opts"], job.unique_key) == ("email", {"lang": "en", "cc": [1, 2]}, "k")
    assert len(assert_enqueued(conn, "mail")) == 2
    assert_enqueued(conn, "mail", count=2)
    assert_enqueued(conn, "mail", {"opts": {"cc": [1, 2]}}, count=1)
    assert_enqueued(conn, "other", count=0)
    for payload in ({"opts": {"cc": [1]}}, {"user_id": "7"}, {"user_id": 9}, {"nothing": None}):
        assert_enqueued(conn, "mail", payload, count=0)
    assert_enqueued(shop.connect(), "mail", count=0)  # another transaction


def test_keys_and_what_a_job_waits_for_are_shown(conn: psycopg.Connection[Any]) -> None:
    due = datetime(2031, 1, 2, tzinfo=UTC)
    first = enqueue(conn, "mail", ordering_key="o", run_at=due)
    enqueue(conn, "sum", unique_key="u", unique_states=["queued"], after=[first])
    enqueue(conn, "call", rate_key="r", rate_limit=1, rate_period=60, concurrency_key="c", concurrency_limit=1)
    [mail] = assert_enqueued(conn, "mail")
    assert (mail.ordering_key, mail.waits_for, mail.run_at) == ("o", "order", due)
    [summed] = assert_enqueued(conn, "sum", unique_key="u")
    assert summed.waits_for == "parents"
    [call] = assert_enqueued(conn, "call")
    assert (call.concurrency_key, call.rate_key, call.waits_for) == ("c", "r", "concurrency")
    with pytest.raises(AssertionError, match="ordering_key='o', waits_for='order'"):
        assert_enqueued(conn, "mail", count=2)


def test_values_are_compared_as_they_are_stored(conn: psycopg.Connection[Any]) -> None:
    @handler("e.values")
    def values(when: datetime, key: uuid.UUID, flag: bool, n: float) -> None: ...

    given = {"when": datetime(2031, 1, 2, tzinfo=UTC), "key": uuid.uuid4(), "flag": True, "n": 2.0}
    values.at().enqueue_many(conn, [given])
    assert_enqueued(conn, values, given, count=1)
    assert_enqueued(conn, values, {"n": 2}, count=1)
    assert_enqueued(conn, values, {"flag": 1}, count=0)


def test_what_it_says(conn: psycopg.Connection[Any]) -> None:
    with pytest.raises(AssertionError) as nothing:
        assert_enqueued(conn, "mail", {"user_id": 7})
    assert str(nothing.value).splitlines() == [
        "expected at least 1 job of 'mail', payload {'user_id': 7}; found 0",
        "  no job at all waits or runs, as this connection sees it",
    ]
    enqueue(conn, "mail", {"user_id": 8}, queue="email")
    enqueue(conn, "report", {})
    with pytest.raises(AssertionError) as other:
        assert_enqueued(conn, "mail", {"user_id": 7}, count=1, queue="email")
    lines = str(other.value).splitlines()
    assert lines[0] == "expected 1 job of 'mail', payload {'user_id': 7}, queue 'email'; found 0"
    assert "payload={'user_id': 8}" in lines[1]
    assert lines[2] == "  other kinds: 'report' (1)"
    with pytest.raises(InvalidJob, match="conn"):
        assert_enqueued("nothing", "mail")  # type: ignore[call-overload]


async def test_on_other_connections(engine: Engine, open_async: Async, django_conn: Any) -> None:
    with engine.begin() as sa:
        enqueue(sa, "mail", {"user_id": 1})
        assert len(assert_enqueued(sa, "mail", {"user_id": 1})) == 1
    async with open_async.asyncpg() as pg:
        assert len(await assert_enqueued(pg, "mail", count=1)) == 1
        with pytest.raises(AssertionError, match="found 1"):
            await assert_enqueued(pg, "mail", count=2)
    async with open_async.engine("asyncpg") as aengine, aengine.connect() as conn:
        await assert_enqueued(conn, "mail", count=1)


def test_on_djangos(django_conn: Any) -> None:
    enqueue(django_conn, "mail", {"user_id": 1})
    assert_enqueued(django_conn, "mail", {"user_id": 1}, count=1)
