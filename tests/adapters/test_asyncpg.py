"""Enqueueing on asyncpg's connections."""

import asyncio
import json
from typing import Any

import asyncpg
import pytest

from supervisor import Enqueued, NewJob, client, enqueue, enqueue_many, publish, publish_many
from supervisor.errors import InvalidJob, SchemaMissing, UniqueConflict
from supervisor.handler import Handler
from supervisor.newevent import NewEvent
from tests.support.database import Database
from tests.support.libraries import Async, address, both

ROW = "insert into business values ($1)"


async def test_a_job_exists_exactly_when_the_transaction_commits(
    open_async: Async, shop: Database, mail: Handler[Any]
) -> None:
    async with open_async.asyncpg() as conn:
        async with conn.transaction():
            assert (await mail.enqueue(conn, user_id=1)).created
            await conn.execute(ROW, 1)
            assert both(shop) == ([], [])
        with pytest.raises(RuntimeError):
            async with conn.transaction():
                await mail.at(in_=60).enqueue(conn, user_id=2)
                raise RuntimeError
        async with conn.transaction():
            await enqueue(conn, "adapters.mail", {"user_id": 3})
            with pytest.raises(RuntimeError):
                async with conn.transaction():
                    await mail.enqueue_many(conn, [{"user_id": 4}])
                    raise RuntimeError
        await enqueue(conn, mail, {"user_id": 5})  # a transaction of its own
    assert both(shop) == ([1], [1, 3, 5])


async def test_a_pools_connection_until_it_is_released(shop: Database, mail: Handler[Any]) -> None:
    at = address(shop)
    async with asyncpg.create_pool(
        host=at["host"], port=int(at["port"]), user=at["user"], password=at.get("password"), database=at["dbname"],
        min_size=1, max_size=1,
    ) as pool:  # fmt: skip
        async with pool.acquire() as conn, conn.transaction():
            await mail.enqueue(conn, user_id=1)
        with pytest.raises(InvalidJob, match="conn: is an asyncpg connection that was released"):
            mail.enqueue(conn, user_id=2)
        with pytest.raises(InvalidJob, match="not Pool; take a connection from the pool"):
            enqueue(pool, "adapters.mail", {})
    assert both(shop) == ([], [1])


async def test_the_callers_codecs_change_nothing(open_async: Async, shop: Database) -> None:
    async with open_async.asyncpg() as conn:
        for name in ("json", "jsonb"):
            await conn.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        await conn.set_type_codec("timestamptz", encoder=str, decoder=str, schema="pg_catalog")
        await enqueue(conn, "adapters.mail", {"user_id": 1, "nested": {"ü": [1, None]}}, headers={"a": "b"})
        await enqueue_many(conn, [NewJob("adapters.mail", {"user_id": 2})])
        await publish(conn, "orders.paid", {"n": 1})
    assert shop.rows("select payload, headers from supervisor.job order by id") == [
        ({"user_id": 1, "nested": {"ü": [1, None]}}, {"a": "b"}),
        ({"user_id": 2}, {}),
    ]


async def test_a_refusal_and_a_conflict_leave_the_transaction_usable(open_async: Async, shop: Database) -> None:
    keyed = [NewJob("adapters.mail", {"user_id": 2}), NewJob("adapters.mail", {"user_id": 3}, unique_key="k")]
    async with open_async.asyncpg() as conn:
        async with conn.transaction():
            first = await enqueue(conn, "adapters.mail", {"user_id": 1}, unique_key="k")
            with pytest.raises(InvalidJob, match="payload"):
                enqueue(conn, "adapters.mail", {"text": "\x00"})
            with pytest.raises(UniqueConflict):
                await enqueue(conn, "adapters.mail", {}, unique_key="k", on_conflict="raise")
            with pytest.raises(UniqueConflict):
                await enqueue_many(conn, keyed, on_conflict="raise")
            assert await enqueue_many(conn, keyed[1:]) == [Enqueued(first.id, False)]
            await conn.execute(ROW, 1)
        with pytest.raises(UniqueConflict):
            await enqueue_many(conn, keyed, on_conflict="raise")
        assert not conn.is_in_transaction()
    assert both(shop) == ([1], [1])


async def test_a_bulk_goes_in_parts_and_whole(
    open_async: Async, shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PART_BYTES", 100_000)
    async with open_async.asyncpg() as conn:
        answers = await enqueue_many(conn, [NewJob("adapters.mail", {"user_id": number}) for number in range(3000)])
        assert not conn.is_in_transaction()
    stored: dict[int, int] = dict(shop.rows("select id, (payload ->> 'user_id')::int from supervisor.job"))
    assert [stored[answer.id] for answer in answers] == list(range(3000))


async def test_a_part_that_fails_takes_back_the_bulk_and_nothing_else(
    open_async: Async, shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PART_BYTES", 100)
    shop.execute("alter table supervisor.job add constraint no_nine check (payload ->> 'user_id' <> '9')")
    async with open_async.asyncpg() as conn, conn.transaction():
        await conn.execute(ROW, 1)
        with pytest.raises(asyncpg.CheckViolationError):
            await enqueue_many(conn, [NewJob("adapters.mail", {"user_id": number}) for number in range(10)])
        await enqueue(conn, "adapters.mail", {"user_id": 11})
    assert both(shop) == ([1], [11])


async def test_a_bulk_that_is_cancelled_while_it_waits_takes_back_itself_only(
    open_async: Async, shop: Database
) -> None:
    holder = shop.connect(autocommit=False)
    enqueue(holder, "adapters.mail", {"user_id": 1}, unique_key="k")
    jobs = [NewJob("adapters.mail", {"user_id": 2}), NewJob("adapters.mail", {"user_id": 3}, unique_key="k")]
    async with open_async.asyncpg() as conn, conn.transaction():
        await conn.execute(ROW, 1)
        bulk = asyncio.create_task(enqueue_many(conn, jobs, on_conflict="raise"))
        await asyncio.to_thread(
            shop.wait_for,
            "select count(*)::int from pg_stat_activity"
            " where wait_event_type = 'Lock' and datname = current_database()",
            1,
        )
        bulk.cancel()
        with pytest.raises(asyncio.CancelledError):
            await bulk
        await enqueue(conn, "adapters.mail", {"user_id": 4})
    holder.rollback()
    assert both(shop) == ([1], [4])


async def test_what_cannot_be_used(open_async: Async) -> None:
    async with open_async.asyncpg() as conn:
        with pytest.raises(SchemaMissing, match="nowhere"):
            await enqueue(conn, "adapters.mail", {}, schema="nowhere")
    with pytest.raises(InvalidJob, match="conn: is an asyncpg connection that is closed"):
        enqueue(conn, "adapters.mail", {})


async def test_events_too(open_async: Async, shop: Database) -> None:
    async with open_async.asyncpg() as conn:
        async with conn.transaction():
            first = await publish(conn, "orders.created", {"n": 1}, key="k")
            several = await publish_many(conn, [NewEvent("orders.paid", {"n": n}) for n in range(3)])
        with pytest.raises(RuntimeError):
            async with conn.transaction():
                await publish(conn, "orders.created", {})
                raise RuntimeError
    found = shop.rows("select id from supervisor.outbox order by id")
    assert [row[0] for row in found] == [first.id, *(event.id for event in several)]
