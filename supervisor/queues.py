"""Pause queues, limit how many of their jobs run at one time and how many start in a period, in the whole cluster.

    pause_queue(conn, "email", by="ann")          # nothing more is claimed; what runs goes on
    resume_queue(conn, "email")
    set_queue(conn, "email", max_running=5)       # from the commit on, whatever workers there are
    set_queue(conn, "email", rate_limit=100, rate_period=60.0)
    unset_queue(conn, "email")                    # or only what="rate", what="max_running"
    queue_settings(conn)                          # every queue that has settings

Each works on a psycopg Connection and, awaited, on an AsyncConnection, in the transaction it is in: a
setting holds when that commits, and within a second every worker knows.

Always true: bad input is refused before any statement, so the caller's transaction can go on.

Elsewhere: what the settings mean (docs/queues.md); the statements (db/queues.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, overload

from supervisor.db.callers import ask, value
from supervisor.db.queues import QueueSettings, read_settings
from supervisor.db.statements import queue_schema
from supervisor.errors import InvalidJob, InvalidQueue
from supervisor.keys import check_int
from supervisor.payload import check_name, check_text
from supervisor.wording import PERIODS

if TYPE_CHECKING:
    from supervisor.db.callers import Rows
    from supervisor.db.enqueue import AsyncConn, SyncConn

__all__ = ["QueueSettings", "pause_queue", "queue_settings", "resume_queue", "set_queue", "unset_queue"]

T = TypeVar("T")
What: TypeAlias = Literal["max_running", "rate"]

MAX_RUNNING: Final = 10_000
MAX_RATE: Final = 1_000_000
RATE_PERIOD_S: Final = (1.0, 366 * 86400.0)
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
    return _order(conn, "pause_queue", schema, _whether, queue=queue, by=by)


@overload
def resume_queue(conn: SyncConn, queue: str, *, schema: str | None = None) -> bool: ...
@overload
def resume_queue(conn: AsyncConn, queue: str, *, schema: str | None = None) -> Coroutine[Any, Any, bool]: ...
def resume_queue(
    conn: SyncConn | AsyncConn, queue: str, *, schema: str | None = None
) -> bool | Coroutine[Any, Any, bool]:
    """Claim from *queue* again; whether it was paused. Raises as `pause_queue`."""
    check_settings(queue)
    return _order(conn, "resume_queue", schema, _whether, queue=queue)


@overload
def set_queue(
    conn: SyncConn,
    queue: str,
    *,
    max_running: int | None = None,
    rate_limit: int | None = None,
    rate_period: float | timedelta | None = None,
    schema: str | None = None,
) -> None: ...
@overload
def set_queue(
    conn: AsyncConn,
    queue: str,
    *,
    max_running: int | None = None,
    rate_limit: int | None = None,
    rate_period: float | timedelta | None = None,
    schema: str | None = None,
) -> Coroutine[Any, Any, None]: ...
def set_queue(
    conn: SyncConn | AsyncConn,
    queue: str,
    *,
    max_running: int | None = None,
    rate_limit: int | None = None,
    rate_period: float | timedelta | None = None,
    schema: str | None = None,
) -> Coroutine[Any, Any, None] | None:
    """Limit *queue* in the whole cluster, from the commit on. What is None stays as it is.

    Args:
        max_running: At most so many of its jobs run at one time; 1 to 10,000. Jobs that run then count; none is
            interrupted. A run holds its place from its claim until it has ended, however it ends.
        rate_limit: At most so many of its jobs start in any period, evenly; 1 to 1,000,000. A job starts with its
            claim; a retry is a start too.
        rate_period: That period, in seconds or as a timedelta; 1 second to 366 days. A second where none is
            given and none was set.

    Raises:
        InvalidQueue: before any statement, with the field named.
        SchemaMissing: the database is not migrated; its error aborted the transaction.
    """
    period_s = check_settings(queue, max_running=max_running, rate_limit=rate_limit, rate_period=rate_period)
    if max_running is None and rate_limit is None and period_s is None:
        raise InvalidQueue("max_running", "or rate_limit must be given: there is nothing to set")
    parameters = {"queue": queue, "max_running": max_running, "rate_limit": rate_limit, "rate_period_s": period_s}
    return _order(conn, "set_queue", schema, _nothing, **parameters)


@overload
def unset_queue(conn: SyncConn, queue: str, *, what: What | None = None, schema: str | None = None) -> bool: ...
@overload
def unset_queue(
    conn: AsyncConn, queue: str, *, what: What | None = None, schema: str | None = None
) -> Coroutine[Any, Any, bool]: ...
def unset_queue(
    conn: SyncConn | AsyncConn, queue: str, *, what: What | None = None, schema: str | None = None
) -> bool | Coroutine[Any, Any, bool]:
    """Take the limits of *queue* away, or only *what*; whether it had any. A pause stays. Raises as `pause_queue`."""
    check_settings(queue, what=what)
    return _order(conn, "unset_queue", schema, _whether, queue=queue, what=what)


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
    return ask(conn, "queue_settings", queue_schema(schema), None, read_settings, wrong=InvalidQueue)


def check_settings(
    queue: str,
    *,
    by: str | None = None,
    max_running: int | None = None,
    rate_limit: int | None = None,
    rate_period: float | timedelta | None = None,
    what: str | None = None,
) -> float | None:
    """Raise InvalidQueue for what no queue can be called or set to; the period in seconds. Asks no database."""
    _checked(check_name, "queue", queue)
    if by is not None:
        _checked(check_text, "by", by, max_bytes=MAX_BY_BYTES)
    if max_running is not None:
        _checked(check_int, "max_running", max_running, 1, MAX_RUNNING)
    if rate_limit is not None:
        _checked(check_int, "rate_limit", rate_limit, 1, MAX_RATE)
    if what not in (None, "max_running", "rate"):
        raise InvalidQueue("what", "must be max_running or rate")
    if rate_period is None:
        return None
    period_s = rate_period.total_seconds() if isinstance(rate_period, timedelta) else rate_period
    if isinstance(period_s, bool) or not isinstance(period_s, int | float):
        raise InvalidQueue(
            "rate_period", f"must be a number of seconds or a timedelta, not {type(rate_period).__name__}"
        )
    if not RATE_PERIOD_S[0] <= period_s <= RATE_PERIOD_S[1]:  # NaN is refused too
        raise InvalidQueue("rate_period", f"is {period_s:g} s, must be 1 second to 366 days")
    return float(period_s)


def read_rate(text: str) -> tuple[int, float]:
    """How many per how many seconds: 10/s, 100/min, 1000/h, 5/d, 20/90s. Raises InvalidQueue."""
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9}(?:\.\d{1,6})?)?(s|min|h|d)", text.strip(), re.ASCII)
    if found is None:
        raise InvalidQueue("rate", "must be like 10/s, 100/min, 1000/h, 5/d or 20/90s")
    unit_s = next(seconds for seconds, name in PERIODS.items() if name == found[3])
    return int(found[1]), float(found[2] or 1) * unit_s


def _order(
    conn: SyncConn | AsyncConn, name: str, schema: str | None, read: Callable[[Rows], T], /, **parameters: object
) -> T | Coroutine[Any, Any, T]:
    return ask(conn, name, queue_schema(schema), parameters, read, wrong=InvalidQueue)


def _whether(found: Rows) -> bool:
    return bool(value(found))


def _nothing(_: Rows) -> None:
    return None


def _checked(check: Any, *arguments: object, **named: object) -> None:
    """Jobs' rules for names and numbers, told as an error of settings."""
    try:
        check(*arguments, **named)
    except InvalidJob as error:
        raise InvalidQueue(error.field, error.reason) from None
