"""What type checkers make of each library's connection: read by mypy, never run."""

from typing import assert_type

from django.db import connection
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from supervisor import Enqueued, NewEvent, NewJob, Published, enqueue, enqueue_many, handler, publish, publish_many


@handler("typed")
def typed(user_id: int) -> None: ...


def sync(conn: Connection, session: Session, shared: scoped_session[Session]) -> None:
    assert_type(enqueue(connection, "typed"), Enqueued)
    assert_type(typed.enqueue(connection, user_id=1), Enqueued)
    assert_type(enqueue(conn, typed, {"user_id": 1}), Enqueued)
    assert_type(typed.enqueue(conn, 1), Enqueued)
    assert_type(typed.at(in_=1).enqueue(session, user_id=1), Enqueued)
    assert_type(typed.enqueue_many(session, [{"user_id": 1}]), list[Enqueued])
    assert_type(enqueue_many(shared, [NewJob("typed")]), list[Enqueued])
    assert_type(publish(session, "topic"), Published)
    assert_type(publish_many(connection, [NewEvent("topic")]), list[Published])
    typed.enqueue(session, user_id="x")  # type: ignore[call-overload]
    typed.enqueue(connection, nobody=1)  # type: ignore[call-overload]


async def awaited(conn: AsyncConnection, session: AsyncSession, shared: async_scoped_session[AsyncSession]) -> None:
    assert_type(await enqueue(conn, "typed"), Enqueued)
    assert_type(await typed.enqueue(session, user_id=1), Enqueued)
    assert_type(await typed.at(priority=1).enqueue(shared, user_id=1), Enqueued)
    assert_type(await enqueue_many(session, [NewJob("typed")]), list[Enqueued])
    assert_type(await typed.enqueue_many(conn, [{"user_id": 1}]), list[Enqueued])
    assert_type(await publish(conn, "topic"), Published)
    assert_type(await publish_many(session, [NewEvent("topic")]), list[Published])
