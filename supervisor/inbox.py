"""Handle an event once: note in the consumer's own transaction that it was handled.

    async with inbox(conn, "billing", event_id) as fresh:
        if fresh:
            await conn.execute("insert into invoice ...")

Brokers deliver at least once; the inbox drops what comes again. The note and what the block writes commit
together or not at all: an exception in the block takes back both, and the event is fresh again.

Always true: of all blocks for one event and consumer exactly one that commits was fresh; a second one at the
same time waits for the first to end. Nothing but the block's own savepoint is committed or rolled back here;
on an autocommit connection, where the caller has no transaction, the block is one.

Elsewhere: the statement (db/inbox.py); pruning (functions/120_inbox.sql); events as jobs (outbox/consume.py).
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, cast, overload
from uuid import UUID

from supervisor.client import takes_await
from supervisor.db import inbox as statements
from supervisor.db.statements import queue_schema
from supervisor.errors import InvalidEvent, InvalidJob
from supervisor.payload import check_name, check_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from supervisor.db.enqueue import AsyncConn, SyncConn

__all__ = ["inbox"]

MAX_EVENT_ID_BYTES: Final = 512


@overload
def inbox(
    conn: SyncConn, consumer: str, event_id: UUID | str, *, schema: str | None = None
) -> AbstractContextManager[bool]: ...
@overload
def inbox(
    conn: AsyncConn, consumer: str, event_id: UUID | str, *, schema: str | None = None
) -> AbstractAsyncContextManager[bool]: ...
def inbox(conn: SyncConn | AsyncConn, consumer: str, event_id: UUID | str, *, schema: str | None = None) -> Any:
    """Enter with whether *event_id* is new to *consumer*; leave with that noted, if the block did not raise.

    Args:
        conn: A psycopg Connection (`with`) or AsyncConnection (`async with`).
        consumer: Who handles it: each consumer has an inbox of its own.
        event_id: The event's id, `ce-id`: a UUID or any text of up to 512 bytes.
        schema: Where the inbox lives; SUPERVISOR_SCHEMA or "supervisor" when not given.

    An event is remembered for SUPERVISOR_KEEP_INBOX_DAYS; one that comes again later is fresh again.

    Raises:
        InvalidEvent: before any statement, with the field named.
        SchemaMissing: the database is not migrated; its error aborted the transaction.
    """
    try:
        where, is_async = queue_schema(schema), takes_await(conn)
        name = check_name("consumer", consumer)
        known_as = str(event_id) if isinstance(event_id, UUID) else event_id
        check_text("event_id", known_as, max_bytes=MAX_EVENT_ID_BYTES)
    except InvalidJob as refused:
        raise InvalidEvent(refused.field, refused.reason) from None
    if is_async:
        return _entered_async(cast("AsyncConn", conn), where, name, known_as)
    return _entered(cast("SyncConn", conn), where, name, known_as)


@contextmanager
def _entered(conn: SyncConn, schema: str, consumer: str, event_id: str) -> Iterator[bool]:
    with statements.noted(conn, schema, consumer, event_id) as fresh:
        yield fresh


@asynccontextmanager
async def _entered_async(conn: AsyncConn, schema: str, consumer: str, event_id: str) -> AsyncIterator[bool]:
    async with statements.noted_async(conn, schema, consumer, event_id) as fresh:
        yield fresh
