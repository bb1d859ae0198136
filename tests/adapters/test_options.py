"""Keys, limits, parents and batches on every library's connection, once each: what is stored, what is refused."""

from typing import Any

import pytest
from django.db import transaction
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from supervisor import NewJob, enqueue, enqueue_batch, enqueue_many
from supervisor.errors import InvalidJob, UniqueConflict
from tests.support.database import Database
from tests.support.libraries import Async

OPTIONS: dict[str, Any] = {
    "unique_key": "é'\"{}\\", "unique_for": 60, "unique_states": ["queued", "done"],
    "ordering_key": "a,b", "on_dead": "hold",
    "concurrency_key": "c", "concurrency_limit": 2, "rate_key": "r", "rate_limit": 3, "rate_period": 60,
}  # fmt: skip


def check(db: Database) -> None:
    """What the calls below have left."""
    assert db.rows(
        "select h.unique_key, h.states, g.gate, g.ordering_key, g.ordering_hold, g.concurrency_key,"
        " g.concurrency_limit, g.rate_key, g.rate_limit, extract(epoch from g.rate_period)::int"
        " from supervisor.gated g join supervisor.unique_hold h using (job_id)"
    ) == [(OPTIONS["unique_key"], ["queued", "done"], 1, "a,b", True, "c", 2, "r", 3, 60)]
    assert db.rows(
        "select j.kind, count(*)::int, min(l.failed)"
        " from supervisor.job_after l join supervisor.job j on j.id = l.child group by 1 order by 1"
    ) == [("child", 1, "cancel"), ("then", 3, "run")]
    assert db.rows("select kind, count(*)::int from supervisor.job group by 1 order by 1") == [
        ("child", 1), ("parent", 1), ("part", 3), ("then", 1)
    ]  # fmt: skip


def use(conn: Any) -> None:
    parent = enqueue(conn, "parent")
    child = enqueue(conn, "child", after=[parent], after_failed="cancel", **OPTIONS)
    assert enqueue_many(conn, [NewJob("child", **OPTIONS)]) == [(child.id, False)]
    batch = enqueue_batch(conn, [NewJob("part")] * 3, NewJob("then"))
    assert batch.then.created
    with pytest.raises(InvalidJob, match="after: no job has the id 999"):
        enqueue(conn, "x", after=[999])
    with pytest.raises(InvalidJob, match=r"jobs\[1\].after: no job has the id 999"):
        enqueue_many(conn, [NewJob("x"), NewJob("x", after=[999])])
    with pytest.raises(UniqueConflict):
        enqueue_batch(conn, [NewJob("x")], NewJob("child", **OPTIONS), on_conflict="raise")


async def use_async(conn: Any) -> None:
    parent = await enqueue(conn, "parent")
    child = await enqueue(conn, "child", after=[parent], after_failed="cancel", **OPTIONS)
    assert await enqueue_many(conn, [NewJob("child", **OPTIONS)]) == [(child.id, False)]
    batch = await enqueue_batch(conn, [NewJob("part")] * 3, NewJob("then"))
    assert batch.then.created
    with pytest.raises(InvalidJob, match="after: no job has the id 999"):
        await enqueue(conn, "x", after=[999])
    with pytest.raises(InvalidJob, match=r"jobs\[1\].after: no job has the id 999"):
        await enqueue_many(conn, [NewJob("x"), NewJob("x", after=[999])])
    with pytest.raises(UniqueConflict):
        await enqueue_batch(conn, [NewJob("x")], NewJob("child", **OPTIONS), on_conflict="raise")


@pytest.mark.parametrize("atomic", [True, False])
def test_django(django_conn: Any, shop: Database, atomic: bool) -> None:
    if atomic:
        with transaction.atomic():
            use(django_conn)
    else:
        use(django_conn)
    check(shop)


@pytest.mark.parametrize("make", ["connection", "session"])
def test_sqlalchemy(engine: Engine, shop: Database, make: str) -> None:
    if make == "session":
        with Session(engine) as session, session.begin():
            use(session)
    else:
        with engine.begin() as conn:
            use(conn)
    check(shop)


@pytest.mark.parametrize("autocommit", [True, False])
def test_psycopg(shop: Database, autocommit: bool) -> None:
    with shop.connect(autocommit=autocommit) as conn:
        use(conn)
    check(shop)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("make", ["connection", "session"])
async def test_sqlalchemy_async(open_async: Async, shop: Database, driver: str, make: str) -> None:
    async with open_async.engine(driver) as engine:
        if make == "session":
            async with AsyncSession(engine) as session, session.begin():
                await use_async(session)
        else:
            async with engine.begin() as conn:
                await use_async(conn)
    check(shop)


@pytest.mark.parametrize("begun", [True, False])
async def test_asyncpg(open_async: Async, shop: Database, begun: bool) -> None:
    async with open_async.asyncpg() as conn:
        if begun:
            async with conn.transaction():
                await use_async(conn)
        else:
            await use_async(conn)
    check(shop)


async def test_psycopg_async(shop: Database) -> None:
    async with await shop.aconnect(autocommit=False) as conn:
        await use_async(conn)
    check(shop)
