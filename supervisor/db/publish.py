"""Sending checked events on a connection that belongs to the caller.

    one    select ... publish(...)              one round trip
    many   select ... publish_many(jsonb)       one statement per part of a bulk

Always true: the caller's connection is used and left as it was, as by enqueueing (enqueue.py).

Elsewhere: checking (supervisor/newevent.py); who calls this (supervisor/publisher.py); connections of other
libraries (steps.py, supervisor/adapters); the SQL functions (functions/100_publish.sql).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from psycopg import AsyncCursor, Cursor
from psycopg.rows import tuple_row

from supervisor.db.enqueue import query_for, savepoint, savepoint_async, schema_errors

if TYPE_CHECKING:
    from supervisor.db.enqueue import AsyncConn, SyncConn
    from supervisor.newevent import NewEvent

Answer: TypeAlias = "tuple[int, str]"

ONE: Final = """
select id, event::text
  from {schema}.publish(topic => %s::text, payload => %s::jsonb, key => %s::text, headers => %s::jsonb,
                        event_id => %s::uuid)
"""

MANY: Final = "select id, event::text from {schema}.publish_many(%s::jsonb) order by ord"


def one(conn: SyncConn, schema: str, event: NewEvent) -> Answer:
    """Add one event; (id, event id)."""
    with schema_errors(schema), Cursor(conn, row_factory=tuple_row) as cur:
        cur.execute(query_for(ONE, schema), parameters(event), prepare=False)
        return answer(cur.fetchone())


async def one_async(conn: AsyncConn, schema: str, event: NewEvent) -> Answer:
    """As `one`."""
    with schema_errors(schema):
        async with AsyncCursor(conn, row_factory=tuple_row) as cur:
            await cur.execute(query_for(ONE, schema), parameters(event), prepare=False)
            return answer(await cur.fetchone())


def many(conn: SyncConn, schema: str, documents: Sequence[str]) -> list[Answer]:
    """Add the events of the JSON arrays *documents*, all or none; (id, event id) of each in their order."""
    with schema_errors(schema), Cursor(conn, row_factory=tuple_row) as cur:

        def send() -> list[Answer]:
            answers: list[Answer] = []
            for document in documents:
                cur.execute(query_for(MANY, schema), (document,), prepare=False)
                answers += [answer(row) for row in cur.fetchall()]
            return answers

        if len(documents) == 1:
            return send()
        with savepoint(conn, cur):
            return send()


async def many_async(conn: AsyncConn, schema: str, documents: Sequence[str]) -> list[Answer]:
    """As `many`."""
    with schema_errors(schema):
        async with AsyncCursor(conn, row_factory=tuple_row) as cur:

            async def send() -> list[Answer]:
                answers: list[Answer] = []
                for document in documents:
                    await cur.execute(query_for(MANY, schema), (document,), prepare=False)
                    answers += [answer(row) for row in await cur.fetchall()]
                return answers

            if len(documents) == 1:
                return await send()
            async with savepoint_async(conn, cur):
                return await send()


def parameters(event: NewEvent) -> tuple[object, ...]:
    """The arguments of ONE."""
    return (event.topic, event.payload_json, event.key, event.headers_json, event.event_id_text)


def answer(row: Sequence[Any] | None) -> Answer:
    """What a row of ONE or MANY says."""
    if row is None:
        raise RuntimeError("the database's publish function answered with no row")
    return int(row[0]), str(row[1])
