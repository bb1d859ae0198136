"""Enqueueing on SQLAlchemy's connections and sessions, sync and async, psycopg and asyncpg below."""

from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import InvalidRequestError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from supervisor import Enqueued, NewJob, client, enqueue, enqueue_many, publish, publish_many
from supervisor.errors import InvalidJob, SchemaMissing, UniqueConflict
from supervisor.handler import Handler
from supervisor.newevent import NewEvent
from tests.support.database import Database
from tests.support.libraries import Async, both

ROW = text("insert into business values (:id)")
drivers = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])


class Base(DeclarativeBase):
    pass


class Business(Base):
    __tablename__ = "business"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


# -- Core ----------------------------------------------------------------------------------------


def test_a_connection_begins_as_usual_and_commits_the_job(engine: Engine, shop: Database, mail: Handler[Any]) -> None:
    with engine.connect() as conn:
        assert mail.enqueue(conn, user_id=1).created
        assert conn.in_transaction()
        conn.execute(ROW, {"id": 1})
        assert both(shop) == ([], [])
        conn.commit()
        enqueue(conn, "adapters.mail", {"user_id": 2})
        conn.rollback()
        enqueue(conn, "adapters.mail", {"user_id": 3})  # left open: closing rolls it back
    with engine.begin() as conn:
        mail.at(priority=5, in_=60).enqueue(conn, 4)
        conn.execute(ROW, {"id": 4})
    with pytest.raises(RuntimeError), engine.begin() as conn:
        enqueue(conn, "adapters.mail", {"user_id": 5})
        raise RuntimeError
    assert both(shop) == ([1, 4], [1, 4])


def test_savepoints_take_their_jobs_with_them(engine: Engine, shop: Database) -> None:
    with engine.begin() as conn:
        enqueue(conn, "adapters.mail", {"user_id": 1})
        with pytest.raises(RuntimeError), conn.begin_nested():
            enqueue(conn, "adapters.mail", {"user_id": 2})
            raise RuntimeError
        with conn.begin_nested():
            enqueue_many(conn, [NewJob("adapters.mail", {"user_id": 3})], on_conflict="raise")
    assert both(shop) == ([], [1, 3])


def test_autocommit_commits_each_call_and_a_bulk_is_whole(engine: Engine, shop: Database) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        enqueue(conn, "adapters.mail", {"user_id": 1}, unique_key="k")
        assert both(shop) == ([], [1])
        jobs = [NewJob("adapters.mail", {"user_id": 2}), NewJob("adapters.mail", {"user_id": 3}, unique_key="k")]
        with pytest.raises(UniqueConflict):
            enqueue_many(conn, jobs, on_conflict="raise")
        assert both(shop) == ([], [1])
        enqueue_many(conn, jobs)
        assert both(shop) == ([], [1, 2])


def test_a_refusal_and_a_conflict_leave_the_transaction_usable(engine: Engine, shop: Database) -> None:
    sent = []
    event.listen(engine, "before_cursor_execute", lambda *args: sent.append(args[2]))
    with engine.begin() as conn:
        first = enqueue(conn, "adapters.mail", {"user_id": 1}, unique_key="k")
        assert len(sent) == 1
        with pytest.raises(InvalidJob, match="payload"):
            enqueue(conn, "adapters.mail", {"text": "\x00"})
        with pytest.raises(InvalidJob, match="queue"):
            enqueue(conn, "adapters.mail", {}, queue="")
        assert len(sent) == 1
        with pytest.raises(UniqueConflict):
            enqueue(conn, "adapters.mail", {}, unique_key="k", on_conflict="raise")
        with pytest.raises(UniqueConflict):
            enqueue_many(
                conn,
                [NewJob("adapters.mail", {"user_id": 2}), NewJob("adapters.mail", {}, unique_key="k")],
                on_conflict="raise",
            )
        assert enqueue(conn, "adapters.mail", {"user_id": 3}, unique_key="k") == Enqueued(first.id, False)
        conn.execute(ROW, {"id": 1})
    assert both(shop) == ([1], [1])


def test_a_bulk_goes_in_parts_and_whole(engine: Engine, shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PART_BYTES", 100_000)
    with engine.begin() as conn:
        answers = enqueue_many(conn, [NewJob("adapters.mail", {"user_id": number}) for number in range(3000)])
        assert both(shop) == ([], [])
    stored: dict[int, int] = dict(shop.rows("select id, (payload ->> 'user_id')::int from supervisor.job"))
    assert [stored[answer.id] for answer in answers] == list(range(3000))


# -- ORM -----------------------------------------------------------------------------------------


def test_a_session_commits_the_job_with_its_objects(engine: Engine, shop: Database, mail: Handler[Any]) -> None:
    with Session(engine) as session:
        session.add(Business(id=1))
        mail.enqueue(session, user_id=1)
        session.flush()
        assert both(shop) == ([], [])
        session.commit()
        session.add(Business(id=2))
        mail.enqueue(session, user_id=2)
        session.rollback()
        with session.begin_nested():
            mail.enqueue_many(session, [{"user_id": 3}])
        session.commit()
    factory = sessionmaker(engine)
    with factory.begin() as session:
        session.add(Business(id=4))
        enqueue(session, mail, {"user_id": 4})
    shared = scoped_session(factory)
    enqueue(shared, "adapters.mail", {"user_id": 5})
    shared.commit()
    shared.remove()
    assert both(shop) == ([1, 4], [1, 3, 4, 5])


def test_a_session_that_failed_to_flush_says_so_itself(engine: Engine, shop: Database) -> None:
    with Session(engine) as session:
        session.add(Business(id=1))
        session.commit()
    with Session(engine) as session:
        session.add(Business(id=1))
        with pytest.raises(Exception, match="business_pkey"):
            session.flush()
        session.rollback()
        enqueue(session, "adapters.mail", {"user_id": 1})
        session.commit()
    assert both(shop) == ([1], [1])


# -- async ---------------------------------------------------------------------------------------


@drivers
async def test_an_async_connection(driver: str, open_async: Async, shop: Database, mail: Handler[Any]) -> None:
    async with open_async.engine(driver) as engine:
        async with engine.connect() as conn:
            assert (await mail.enqueue(conn, user_id=1)).created
            await conn.execute(ROW, {"id": 1})
            assert both(shop) == ([], [])
            await conn.commit()
            await enqueue(conn, "adapters.mail", {"user_id": 2})
            await conn.rollback()
        async with engine.begin() as conn:
            await mail.at(in_=3600, timeout=7.5, headers={"a": "ü"}).enqueue(conn, user_id=3)
            with pytest.raises(RuntimeError):
                async with conn.begin_nested():
                    await enqueue(conn, "adapters.mail", {"user_id": 4})
                    raise RuntimeError
    assert both(shop) == ([1], [1, 3])
    assert shop.rows("select headers, timeout::text, run_at > now() from supervisor.job where id > 2") == [
        ({"a": "ü"}, "00:00:07.5", True)
    ]


@drivers
async def test_an_async_session(driver: str, open_async: Async, shop: Database, mail: Handler[Any]) -> None:
    async with open_async.engine(driver) as engine:
        async with AsyncSession(engine) as session:
            session.add(Business(id=1))
            await mail.enqueue(session, user_id=1)
            await session.flush()
            assert both(shop) == ([], [])
            await session.commit()
            await mail.enqueue(session, user_id=2)
            await session.rollback()
        factory = async_sessionmaker(engine)
        with pytest.raises(RuntimeError):
            async with factory.begin() as session:
                await enqueue_many(session, [NewJob("adapters.mail", {"user_id": 3})])
                raise RuntimeError
        shared = async_scoped_session(factory, scopefunc=lambda: 1)
        await enqueue(shared, "adapters.mail", {"user_id": 4})
        await shared.commit()
        await shared.remove()
    assert both(shop) == ([1], [1, 4])


@drivers
async def test_async_conflicts_and_refusals(driver: str, open_async: Async, shop: Database) -> None:
    keyed = [NewJob("adapters.mail", {"user_id": 2}), NewJob("adapters.mail", {"user_id": 3}, unique_key="k")]
    async with open_async.engine(driver) as engine, engine.begin() as conn:
        first = await enqueue(conn, "adapters.mail", {"user_id": 1}, unique_key="k")
        with pytest.raises(InvalidJob, match="payload"):
            await enqueue(conn, "adapters.mail", {"text": "\x00"})
        with pytest.raises(UniqueConflict):
            await enqueue_many(conn, keyed, on_conflict="raise")
        assert await enqueue_many(conn, keyed[1:]) == [Enqueued(first.id, False)]
        event_ids = await publish_many(conn, [NewEvent("orders.paid", {"n": n}, key="k") for n in range(3)])
        await publish(conn, "orders.sent", {}, event_id=None)
        await conn.execute(ROW, {"id": 1})
    assert both(shop) == ([1], [1])
    assert len({found.event_id for found in event_ids}) == 3
    assert shop.value("select count(*)::int from supervisor.outbox") == 4


@drivers
async def test_async_autocommit(driver: str, open_async: Async, shop: Database) -> None:
    keyed = [NewJob("adapters.mail", {"user_id": 2}), NewJob("adapters.mail", {"user_id": 3}, unique_key="k")]
    async with open_async.engine(driver, isolation_level="AUTOCOMMIT") as engine, engine.connect() as conn:
        await enqueue(conn, "adapters.mail", {"user_id": 1}, unique_key="k")
        assert both(shop) == ([], [1])
        with pytest.raises(UniqueConflict):
            await enqueue_many(conn, keyed, on_conflict="raise")
        assert both(shop) == ([], [1])
        await enqueue_many(conn, keyed[:1], on_conflict="raise")
        assert both(shop) == ([], [1, 2])


# -- what cannot be used -------------------------------------------------------------------------


@drivers
async def test_what_cannot_be_used_async(driver: str, open_async: Async) -> None:
    async with open_async.engine(driver) as engine:
        with pytest.raises(InvalidJob, match="not AsyncEngine; take a connection from the engine"):
            enqueue(engine, "adapters.mail", {})  # type: ignore[call-overload]
        with pytest.raises(InvalidJob, match="conn: is a SQLAlchemy AsyncConnection that is not started"):
            await enqueue(AsyncConnection(engine), "adapters.mail", {})
        async with engine.connect() as conn:
            pass
        with pytest.raises(InvalidJob, match="conn: is a SQLAlchemy connection that is closed"):
            await enqueue(conn, "adapters.mail", {})
        async with engine.begin() as conn:
            with pytest.raises(SchemaMissing, match="nowhere"):
                await enqueue(conn, "adapters.mail", {}, schema="nowhere")


def test_what_cannot_be_used(engine: Engine) -> None:
    lite = create_engine("sqlite://")
    with (
        lite.connect() as conn,
        pytest.raises(InvalidJob, match="conn: is SQLAlchemy's for sqlite: must be PostgreSQL"),
    ):
        enqueue(conn, "adapters.mail", {})
    with Session(lite) as session, pytest.raises(InvalidJob, match="sqlite"):
        enqueue(session, "adapters.mail", {})
    with Session() as session, pytest.raises(InvalidJob, match="without one engine"):
        enqueue(session, "adapters.mail", {})
    with pytest.raises(InvalidJob, match="not Engine; take a connection from the engine"):
        enqueue(engine, "adapters.mail", {})  # type: ignore[call-overload]
    with engine.connect() as conn:
        pass
    with pytest.raises(InvalidJob, match="conn: is a SQLAlchemy connection that is closed"):
        enqueue(conn, "adapters.mail", {})
    with engine.connect() as conn:
        with pytest.raises(SchemaMissing, match="nowhere"):
            enqueue(conn, "adapters.mail", {}, schema="nowhere")
        with pytest.raises((ProgrammingError, InvalidRequestError, Exception), match="aborted"):
            conn.execute(text("select 1"))
    lite.dispose()
