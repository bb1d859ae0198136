"""Pause queues and limit how many of their jobs run at one time in the whole cluster.

    pause_queue(conn, "email", by="ann")          # nothing more is claimed; what runs goes on
    resume_queue(conn, "email")
    set_queue(conn, "email", max_running=5)       # from the commit on, whatever workers there are
    unset_queue(conn, "email")
    queue_settings(conn)                          # every queue that has settings

Each works on a psycopg Connection and, awaited, on an AsyncConnection, in the transaction it is in: a
setting holds when that commits, and within a second every worker knows.

Always true: bad input is refused before any statement, so the caller's transaction can go on.

Elsewhere: what the settings mean (docs/queues.md); the statements (db/queues.py).
"""

from __future__ import annotations

import os
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, cast, overload

from supervisor.db import enqueue, queues
from supervisor.db.queues import QueueSettings
from supervisor.db.statements import check_schema
from supervisor.errors import InvalidJob, InvalidQueue, SettingsInvalid
from supervisor.newjob import check_int
from supervisor.payload import check_name, check_text

if TYPE_CHECKING:
    from supervisor.db.queues import AsyncConn, SyncConn

__all__ = ["QueueSettings", "pause_queue", "queue_settings", "resume_queue", "set_queue", "unset_queue"]

MAX_RUNNING: Final = 10_000
MAX_BY_BYTES: Final = 200


@overload
def pause_queue(conn: SyncConn, queue: str, *, by: str | None = None, schema: str | None = None) -> bool: ...
@overload
def pause_queue(
    conn: AsyncConn, queue: str, *, by: str | None = None, schema: str | None = None
) -> Coroutine[Any, Any, bool]: ...
def pause_queue(
    conn: SyncConn | AsyncConn, queue: str, *, by: str | None = None, schema: str | None = None
) -> bool | Coroutine[Any, Any, bool]:
    """Claim nothing more from *queue*; whether it was not paused before. Jobs can still be added.

    Jobs that run go on; claimed ones that have not started go back. A claim that is under way at the commit
    may still come through.

    Args:
        by: Who does it, for people to see; at most 200 bytes.

    Raises:
        InvalidQueue: before any statement, with the field named.
        SchemaMissing: the database is not migrated; its error aborted the transaction.
    """
    check_settings(queue, by=by)
    return cast("bool | Coroutine[Any, Any, bool]", _order(conn, "pause_queue", schema, queue=queue, by=by))


@overload
def resume_queue(conn: SyncConn, queue: str, *, schema: str | None = None) -> bool: ...
@overload
def resume_queue(conn: AsyncConn, queue: str, *, schema: str | None = None) -> Coroutine[Any, Any, bool]: ...
def resume_queue(
    conn: SyncConn | AsyncConn, queue: str, *, schema: str | None = None
) -> bool | Coroutine[Any, Any, bool]:
    """Claim from *queue* again; whether it was paused. Raises as `pause_queue`."""
    check_settings(queue)
    return cast("bool | Coroutine[Any, Any, bool]", _order(conn, "resume_queue", schema, queue=queue))


@overload
def set_queue(conn: SyncConn, queue: str, *, max_running: int, schema: str | None = None) -> None: ...
@overload
def set_queue(
    conn: AsyncConn, queue: str, *, max_running: int, schema: str | None = None
) -> Coroutine[Any, Any, None]: ...
def set_queue(
    conn: SyncConn | AsyncConn, queue: str, *, max_running: int, schema: str | None = None
) -> Coroutine[Any, Any, None] | None:
    """Let at most *max_running* jobs of *queue* run at one time, in the whole cluster.

    Holds from the commit on. Jobs that run then count; none is interrupted. A run holds its place from its
    claim until it has ended, however it ends.

    Args:
        max_running: 1 to 10,000.

    Raises:
        InvalidQueue: before any statement, with the field named.
        SchemaMissing: the database is not migrated; its error aborted the transaction.
    """
    check_settings(queue)
    _checked(check_int, "max_running", max_running, 1, MAX_RUNNING)  # None too is refused
    return cast(
        "Coroutine[Any, Any, None] | None", _order(conn, "set_queue", schema, queue=queue, max_running=max_running)
    )


@overload
def unset_queue(conn: SyncConn, queue: str, *, schema: str | None = None) -> bool: ...
@overload
def unset_queue(conn: AsyncConn, queue: str, *, schema: str | None = None) -> Coroutine[Any, Any, bool]: ...
def unset_queue(
    conn: SyncConn | AsyncConn, queue: str, *, schema: str | None = None
) -> bool | Coroutine[Any, Any, bool]:
    """Take the limits of *queue* away; whether it had any. A pause stays. Raises as `pause_queue`."""
    check_settings(queue)
    return cast("bool | Coroutine[Any, Any, bool]", _order(conn, "unset_queue", schema, queue=queue))


@overload
def queue_settings(conn: SyncConn, *, schema: str | None = None) -> list[QueueSettings]: ...
@overload
def queue_settings(conn: AsyncConn, *, schema: str | None = None) -> Coroutine[Any, Any, list[QueueSettings]]: ...
def queue_settings(
    conn: SyncConn | AsyncConn, *, schema: str | None = None
) -> list[QueueSettings] | Coroutine[Any, Any, list[QueueSettings]]:
    """Every queue that has settings, by name, with the places taken of those with a limit.

    Raises:
        SchemaMissing: the database is not migrated; its error aborted the transaction.
    """
    where = _schema(schema)
    if _is_async(conn):
        return queues.settings_async(cast("AsyncConn", conn), where)
    return queues.settings(cast("SyncConn", conn), where)


def check_settings(queue: str, *, by: str | None = None, max_running: int | None = None) -> None:
    """Raise InvalidQueue for what no queue can be called or set to; asks no database."""
    _checked(check_name, "queue", queue)
    if by is not None:
        _checked(check_text, "by", by, max_bytes=MAX_BY_BYTES)
    if max_running is not None:
        _checked(check_int, "max_running", max_running, 1, MAX_RUNNING)


def _order(conn: SyncConn | AsyncConn, name: str, schema: str | None, **parameters: object) -> object:
    where = _schema(schema)
    if _is_async(conn):
        return queues.order_async(cast("AsyncConn", conn), name, where, parameters)
    return queues.order(cast("SyncConn", conn), name, where, parameters)


def _checked(check: Any, *arguments: object, **named: object) -> None:
    """Jobs' rules for names and numbers, told as an error of settings."""
    try:
        check(*arguments, **named)
    except InvalidJob as error:
        raise InvalidQueue(error.field, error.reason) from None


def _is_async(conn: object) -> bool:
    answer = enqueue.is_async(conn)
    if answer is None:
        raise InvalidQueue("conn", f"must be a psycopg Connection or AsyncConnection, not {type(conn).__name__}")
    return answer


def _schema(schema: str | None) -> str:
    if schema is not None:
        return check_schema(schema)
    try:
        return check_schema(os.environ.get("SUPERVISOR_SCHEMA") or "supervisor")
    except InvalidJob as error:
        raise SettingsInvalid([f"SUPERVISOR_SCHEMA {error.reason}"]) from None
