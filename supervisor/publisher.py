"""Publish events in the caller's own transaction.

    with conn.transaction():
        create_order(conn, ...)
        publish(conn, "orders.created", {"order_id": 7}, key="order-7")     # published exactly when the order exists

The event is a row of the outbox; a relay sends it to the broker once its transaction has committed, at least
once, in order per key. Works on a psycopg Connection and, awaited, on an AsyncConnection, in whatever state it is,
and on connections of Django, SQLAlchemy and asyncpg (adapters/).

Always true: a refusal (InvalidEvent) leaves the caller's transaction as it was. Nothing is committed, rolled
back or closed here; a bulk is stored whole or not at all.

Elsewhere: checks (newevent.py, payload.py); statements (db/publish.py); what becomes of it (outbox/).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, overload
from uuid import UUID

from supervisor.client import MAX_DOCUMENT_BYTES, PART_BYTES, adapter_of, takes_await
from supervisor.db import publish as statements
from supervisor.db import steps
from supervisor.db.statements import queue_schema
from supervisor.errors import InvalidEvent, InvalidJob
from supervisor.newevent import NewEvent, Published
from supervisor.trace import current_context

if TYPE_CHECKING:
    from supervisor.adapters import Adapter
    from supervisor.adapters.protocols import AsyncUserConn, UserConn
    from supervisor.db.enqueue import AsyncConn, SyncConn
    from supervisor.db.publish import Answer
    from supervisor.db.steps import Steps

__all__ = ["NewEvent", "Published", "publish", "publish_many"]


@overload
def publish(
    conn: UserConn,
    topic: str,
    payload: Mapping[str, Any] | None = None,
    *,
    key: str | None = None,
    headers: Mapping[str, Any] | None = None,
    event_id: UUID | str | None = None,
    schema: str | None = None,
) -> Published: ...
@overload
def publish(
    conn: AsyncUserConn,
    topic: str,
    payload: Mapping[str, Any] | None = None,
    *,
    key: str | None = None,
    headers: Mapping[str, Any] | None = None,
    event_id: UUID | str | None = None,
    schema: str | None = None,
) -> Coroutine[Any, Any, Published]: ...
def publish(
    conn: UserConn | AsyncUserConn,
    topic: str,
    payload: Mapping[str, Any] | None = None,
    *,
    key: str | None = None,
    headers: Mapping[str, Any] | None = None,
    event_id: UUID | str | None = None,
    schema: str | None = None,
) -> Published | Coroutine[Any, Any, Published]:
    """Add one event to the outbox, in the transaction *conn* is in. On an async connection, await the answer.

    Args:
        conn: A psycopg Connection or AsyncConnection, an asyncpg Connection, a Django connection, or a SQLAlchemy
            Connection, Session, AsyncConnection or AsyncSession. It is not committed, rolled back or closed.
        topic: Where it goes: a JetStream subject, a routing key, a Kafka topic.
        payload: Any mapping that JSON can hold.
        key: Events of one key are published one after the other, in the order of their transactions.
        headers: Sent along as text, beside those of CloudEvents; 64 KiB in all.
        event_id: The event's id for consumers; made by the database when not given.
        schema: Where the outbox lives; SUPERVISOR_SCHEMA or "supervisor" when not given.

    Raises:
        InvalidEvent: before any statement, with the field named.
        SchemaMissing: the database is not migrated; its error aborted the transaction.
    """
    where, theirs, is_async = _place(conn, schema)
    [event] = _traced([NewEvent(topic, payload, key=key, headers=headers, event_id=event_id)])
    if theirs is not None:

        def sent(_: bool) -> Steps[Answer]:
            return steps.one(where, statements.ONE, statements.parameters(event), statements.answer)

        return _one_theirs_async(theirs, sent) if is_async else _published(theirs.run(sent))
    if is_async:
        return _one_async(cast("AsyncConn", conn), where, event)
    return _published(statements.one(cast("SyncConn", conn), where, event))


@overload
def publish_many(conn: UserConn, events: Iterable[NewEvent], *, schema: str | None = None) -> list[Published]: ...
@overload
def publish_many(
    conn: AsyncUserConn, events: Iterable[NewEvent], *, schema: str | None = None
) -> Coroutine[Any, Any, list[Published]]: ...
def publish_many(
    conn: UserConn | AsyncUserConn, events: Iterable[NewEvent], *, schema: str | None = None
) -> list[Published] | Coroutine[Any, Any, list[Published]]:
    """Add many events: the same, in the same order, as that many single calls. All or none, in one statement.

    Raises:
        InvalidEvent: before any statement (a NewEvent is checked when it is made).
        SchemaMissing: the database is not migrated; its error aborted the transaction.
    """
    where, theirs, is_async = _place(conn, schema)
    listed = list(events)
    for index, event in enumerate(listed):
        if not isinstance(event, NewEvent):
            raise InvalidEvent(f"events[{index}]", f"must be a NewEvent, not {type(event).__name__}")
    documents = _documents(_traced(listed), MAX_DOCUMENT_BYTES if theirs is None else PART_BYTES)
    if theirs is not None:

        def sent(is_open: bool) -> Steps[list[Published]]:
            return steps.many(
                where,
                statements.MANY,
                documents,
                statements.answer,
                _all_published,
                undoable=False,
                in_transaction=is_open,
            )

        return theirs.run_async(sent) if is_async else theirs.run(sent)
    if is_async:
        return _many_async(cast("AsyncConn", conn), where, documents)
    return _all_published(statements.many(cast("SyncConn", conn), where, documents))


async def _one_async(conn: AsyncConn, schema: str, event: NewEvent) -> Published:
    return _published(await statements.one_async(conn, schema, event))


async def _many_async(conn: AsyncConn, schema: str, documents: list[str]) -> list[Published]:
    return _all_published(await statements.many_async(conn, schema, documents))


async def _one_theirs_async(theirs: Adapter, sent: Callable[[bool], Steps[Answer]]) -> Published:
    return _published(await theirs.run_async(sent))


def _place(conn: object, schema: str | None) -> tuple[str, Adapter | None, bool]:
    """The schema, the adapter of another library's connection, and whether it is awaited."""
    try:
        where, theirs = queue_schema(schema), adapter_of(conn)
        return where, theirs, takes_await(conn) if theirs is None else theirs.is_async
    except InvalidJob as refused:
        raise InvalidEvent(refused.field, refused.reason) from None


def _traced(events: list[NewEvent]) -> list[NewEvent]:
    """With the trace that the caller is in: consumers of the event go on with it."""
    context = current_context()
    return [event.with_headers(context) for event in events] if context else events


def _published(answer: Answer) -> Published:
    return Published(answer[0], UUID(answer[1]))


def _all_published(answers: Sequence[Answer]) -> list[Published]:
    return [_published(answer) for answer in answers]


def _documents(events: Sequence[NewEvent], most: int) -> list[str]:
    """The bulk as JSON arrays of about *most* bytes; none when it is empty."""
    parts: list[list[str]] = []
    size = 0
    for event in events:
        element = event.element()
        length = len(element) if element.isascii() else len(element.encode())
        if not parts or size + length > most:
            parts.append([])
            size = 0
        parts[-1].append(element)
        size += length
    return [f"[{','.join(part)}]" for part in parts]
