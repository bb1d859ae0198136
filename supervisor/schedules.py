"""Look at cron entries and give orders for them; their next runs, and words for them.

    schedules(conn)                                    # every entry, with what is in force
    pause_schedule(conn, "report.daily", by="ann")     # nothing is fired until it is resumed
    resume_schedule(conn, "report.daily")
    run_schedule(conn, "report.daily")                 # a job now; the ticks stay as they are
    set_schedule(conn, "report.daily", cron="0 4 * * *", tz="UTC", missed="skip")
    unset_schedule(conn, "report.daily")               # as its handler says again

Each works on a psycopg Connection and, awaited, on an AsyncConnection, in the transaction it is in: it holds when
that commits, and within a second every supervisor knows. An entry is called like its kind, or KIND:NAME.

Always true: an order that passes `check_order` is refused by the database for its name only; the next runs
shown are those that supervisors will fire, since both come from the same row by the same code.

Elsewhere: what entries are (docs/cron.md); ticks (cron.py); the statements (db/schedules.py, functions/085_cron.sql).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, overload

from supervisor.cron import Timetable, check_missed, check_zone
from supervisor.db.callers import ask
from supervisor.db.schedules import Schedule, first, read_schedules
from supervisor.db.statements import queue_schema
from supervisor.errors import InvalidJob, InvalidSchedule
from supervisor.payload import check_text

if TYPE_CHECKING:
    from supervisor.db.callers import Rows
    from supervisor.db.enqueue import AsyncConn, SyncConn

__all__ = [
    "Added",
    "Schedule",
    "pause_schedule",
    "resume_schedule",
    "run_schedule",
    "schedules",
    "set_schedule",
    "unset_schedule",
]

T = TypeVar("T")

MAX_BY_BYTES: Final = 200
MAX_NAME_BYTES: Final = 300


def check_order(
    name: str, *, by: str | None = None, cron: str | None = None, tz: str | None = None, missed: int | None = None
) -> None:
    """Raise InvalidSchedule, with the field named, for what no entry can be called or set to."""
    try:
        check_text("name", name, max_bytes=MAX_NAME_BYTES)
        if by is not None:
            check_text("by", by, max_bytes=MAX_BY_BYTES)
    except InvalidJob as error:
        raise InvalidSchedule(error.field, error.reason) from None
    if tz is not None:
        check_zone(tz)
    if cron is not None:
        Timetable(cron)
    if missed:
        check_missed(missed)


def read_missed(text: str) -> int:
    """How many missed ticks are fired at most, from a word or a number as text; raises as `check_missed`."""
    return check_missed(int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else text)


def missed_word(missed: int) -> str:
    """How `missed` is written: skip, once, or the number."""
    return {0: "skip", 1: "once"}.get(missed, str(missed))


def next_runs(entry: Schedule, count: int) -> list[datetime]:
    """The next *count* ticks of *entry*, in its own time zone; for a paused one, as if it were resumed now.

    Empty for an entry that is retired or cannot be computed here.
    """
    if entry.retired_at is not None:
        return []
    try:
        zone, table = check_zone(entry.tz), Timetable(entry.cron, entry.tz)
    except InvalidSchedule:
        return []
    planned = entry.next_at if entry.state == "open" else None
    begin = entry.now if planned is None else planned.astimezone(UTC) - timedelta(seconds=1)
    return [tick.astimezone(zone) for tick in table.upcoming(begin, count)]


class Added(NamedTuple):
    """The job that `run_schedule` asked for: its id, and whether it was added; else it has the handler's unique key."""

    id: int
    created: bool


@overload
def schedules(conn: SyncConn, *, schema: str | None = None) -> list[Schedule]: ...
@overload
def schedules(conn: AsyncConn, *, schema: str | None = None) -> Coroutine[Any, Any, list[Schedule]]: ...
def schedules(
    conn: SyncConn | AsyncConn, *, schema: str | None = None
) -> list[Schedule] | Coroutine[Any, Any, list[Schedule]]:
    """Every entry, retired ones last; `next_runs` tells when one is due.

    Raises:
        SchemaMissing: the database is not migrated; its error aborted the transaction.
    """
    return ask(conn, "schedules", queue_schema(schema), None, read_schedules, wrong=InvalidSchedule)


@overload
def pause_schedule(conn: SyncConn, name: str, *, by: str | None = None, schema: str | None = None) -> bool: ...
@overload
def pause_schedule(
    conn: AsyncConn, name: str, *, by: str | None = None, schema: str | None = None
) -> Coroutine[Any, Any, bool]: ...
def pause_schedule(
    conn: SyncConn | AsyncConn, name: str, *, by: str | None = None, schema: str | None = None
) -> bool | Coroutine[Any, Any, bool]:
    """Fire nothing of entry *name* until it is resumed; whether it was not paused before.

    What is due meanwhile does not count as missed.

    Args:
        by: Who does it, for people to see; at most 200 bytes.

    Raises:
        InvalidSchedule: bad input before any statement, with the field named; or there is no such entry: the
            database's refusal aborted the transaction.
        SchemaMissing: the database is not migrated; its error aborted the transaction.
    """
    check_order(name, by=by)
    return _order(conn, "pause_schedule", schema, _first, name=name, by=by)


@overload
def resume_schedule(conn: SyncConn, name: str, *, schema: str | None = None) -> bool: ...
@overload
def resume_schedule(conn: AsyncConn, name: str, *, schema: str | None = None) -> Coroutine[Any, Any, bool]: ...
def resume_schedule(
    conn: SyncConn | AsyncConn, name: str, *, schema: str | None = None
) -> bool | Coroutine[Any, Any, bool]:
    """Fire entry *name* again, from its next tick on; whether it was paused. Raises as `pause_schedule`."""
    check_order(name)
    return _order(conn, "resume_schedule", schema, _first, name=name)


@overload
def run_schedule(conn: SyncConn, name: str, *, by: str | None = None, schema: str | None = None) -> Added: ...
@overload
def run_schedule(
    conn: AsyncConn, name: str, *, by: str | None = None, schema: str | None = None
) -> Coroutine[Any, Any, Added]: ...
def run_schedule(
    conn: SyncConn | AsyncConn, name: str, *, by: str | None = None, schema: str | None = None
) -> Added | Coroutine[Any, Any, Added]:
    """Add a job of entry *name* now, paused or not; its ticks stay as they are. Raises as `pause_schedule`."""
    check_order(name, by=by)
    return _order(conn, "run_schedule", schema, _added, name=name, by=by)


@overload
def set_schedule(
    conn: SyncConn,
    name: str,
    *,
    cron: str | None = None,
    tz: str | None = None,
    missed: int | str | None = None,
    by: str | None = None,
    schema: str | None = None,
) -> None: ...
@overload
def set_schedule(
    conn: AsyncConn,
    name: str,
    *,
    cron: str | None = None,
    tz: str | None = None,
    missed: int | str | None = None,
    by: str | None = None,
    schema: str | None = None,
) -> Coroutine[Any, Any, None]: ...
def set_schedule(
    conn: SyncConn | AsyncConn,
    name: str,
    *,
    cron: str | None = None,
    tz: str | None = None,
    missed: int | str | None = None,
    by: str | None = None,
    schema: str | None = None,
) -> Coroutine[Any, Any, None] | None:
    """Set when entry *name* runs, whatever its handler says, deploys included, until `unset_schedule`.

    What is None stays as it is. It begins with the next tick.

    Args:
        cron: Five fields, or six with a second first.
        tz: A time zone's name, as in Europe/Paris.
        missed: "skip", "once" or a number up to 1,000.
        by: As in `pause_schedule`.

    Raises:
        InvalidSchedule: bad input before any statement, with the field named; or there is no such entry: the
            database's refusal aborted the transaction.
        SchemaMissing: the database is not migrated; its error aborted the transaction.
    """
    if cron is None and tz is None and missed is None:
        raise InvalidSchedule("cron", "or tz or missed must be given: there is nothing to set")
    most = None if missed is None else check_missed(missed)
    check_order(name, by=by, cron=cron, tz=tz, missed=most)
    return _order(conn, "set_schedule", schema, _nothing, name=name, cron=cron, tz=tz, missed=most, by=by)


@overload
def unset_schedule(conn: SyncConn, name: str, *, schema: str | None = None) -> bool: ...
@overload
def unset_schedule(conn: AsyncConn, name: str, *, schema: str | None = None) -> Coroutine[Any, Any, bool]: ...
def unset_schedule(
    conn: SyncConn | AsyncConn, name: str, *, schema: str | None = None
) -> bool | Coroutine[Any, Any, bool]:
    """Go back to what the handler of entry *name* says; whether anything was set. Raises as `pause_schedule`."""
    check_order(name)
    return _order(conn, "unset_schedule", schema, _first, name=name)


def _first(row: tuple[Any, ...]) -> bool:
    return bool(row[0])


def _added(row: tuple[Any, ...]) -> Added:
    return Added(*row)


def _nothing(_: tuple[Any, ...]) -> None:
    return None


def _order(
    conn: SyncConn | AsyncConn,
    name: str,
    schema: str | None,
    read: Callable[[tuple[Any, ...]], T],
    /,
    **parameters: object,
) -> T | Coroutine[Any, Any, T]:
    def answer(found: Rows) -> T:
        return read(first(found))

    return ask(conn, name, queue_schema(schema), parameters, answer, wrong=InvalidSchedule, refused=InvalidSchedule)
