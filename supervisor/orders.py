"""Cancel or retry jobs from a program, by ids or all that a filter names; let the next of a dead job's key go.

    cancel_jobs(conn, job)                                      # the answer of an enqueue, or an id, or several
    cancel_jobs(conn, queue="bulk", older_than=timedelta(days=1))
    cancel_jobs(conn, kind="report", force=True)                # running ones that do not stop within 5 s are ended
    retry_jobs(conn, kind="email.welcome")                      # dead ones
    release_order(conn, job)                                    # one with on_dead="hold" that is not to be retried

Each works on any connection that `enqueue` takes, and is awaited on async ones. By filter in batches of 1,000: on
an autocommit connection each is committed by itself, so that no worker waits long, and what was done stands if it
is broken off; in a transaction all of it is the transaction's.

Always true: bad input is refused before any statement. Jobs enqueued after the call began are not its own. No
statement looks at more than 20,000 rows.

Elsewhere: the functions, for every language (db/functions/081_bulk.sql); for people `supervisor jobs cancel`
(cli/orders.py).
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, cast, overload

from supervisor.client import adapter_of
from supervisor.db.jobs import numbers
from supervisor.db.plain import Plain
from supervisor.db.statements import queue_schema, render, statement
from supervisor.db.steps import Step, sent, sqlstate
from supervisor.errors import InvalidJob
from supervisor.keys import Enqueued, check_seconds
from supervisor.payload import check_key, check_name

if TYPE_CHECKING:
    from supervisor.adapters.protocols import AsyncUserConn, UserConn
    from supervisor.db.steps import Row, Steps

__all__ = ["Cancelled", "Retried", "cancel_jobs", "release_order", "retry_jobs"]

T = TypeVar("T")
Jobs: TypeAlias = "Enqueued | int | Iterable[Enqueued | int]"
Living: TypeAlias = Literal["queued", "running"]
Ended: TypeAlias = Literal["dead", "cancelled"]

GRACE_S: Final = 5.0
MAX_GRACE_S: Final = 86_400.0
MAX_AGE_S: Final = 100 * 366 * 86_400.0
MOST: Final = 1000
_TRIES: Final = 3

_CANCEL: Final = """
select count(*) filter (where what = 'cancelled')::int, count(*) filter (where what = 'asked')::int
  from {schema}.cancel_job(%s::text::bigint[], make_interval(secs => %s::float8))
"""
_CANCEL_JOBS: Final = """
select cancelled, asked, edge
  from {schema}.cancel_jobs(kind => %s::text, queue => %s::text, statuses => %s::text::text[],
                            older_than => make_interval(secs => %s::float8), key => %s::text, after => %s::bigint,
                            upto => %s::bigint, most => %s::int, kill_after => make_interval(secs => %s::float8),
                            dry_run => %s::int::boolean)
"""
_RETRY: Final = "select count(*)::int from {schema}.retry_job(%s::text::bigint[])"
_RELEASE: Final = "select count(*)::int from {schema}.release_order(%s::text::bigint[])"
_RETRY_JOBS: Final = """
select retried, taken, edge
  from {schema}.retry_jobs(kind => %s::text, queue => %s::text, statuses => %s::text::text[],
                           older_than => make_interval(secs => %s::float8), key => %s::text, after => %s::bigint,
                           upto => %s::bigint, most => %s::int, dry_run => %s::int::boolean)
"""


class Cancelled(NamedTuple):
    """What became of jobs that were to be cancelled.

    Attributes:
        cancelled: Taken out of the queue.
        asked: Running: their handlers are being told to stop, and they can never go back to the queue.
    """

    cancelled: int
    asked: int


class Retried(NamedTuple):
    """What became of jobs that were to be retried.

    Attributes:
        retried: Put back, with their counts reset.
        taken: Left alone: a living job holds their unique key. Of ids that is an error instead.
    """

    retried: int
    taken: int


class _Filter(NamedTuple):
    kind: str | None
    queue: str | None
    statuses: tuple[str, ...]
    older_s: float | None
    key: str | None

    def arguments(self) -> tuple[Any, ...]:
        return self.kind, self.queue, "{" + ",".join(self.statuses) + "}", self.older_s, self.key


@overload
def cancel_jobs(
    conn: UserConn,
    jobs: Jobs | None = None,
    *,
    kind: str | None = None,
    queue: str | None = None,
    status: Living | None = None,
    older_than: timedelta | float | None = None,
    key: str | None = None,
    force: bool = False,
    grace: timedelta | float = GRACE_S,
    dry_run: bool = False,
    schema: str | None = None,
) -> Cancelled: ...
@overload
def cancel_jobs(
    conn: AsyncUserConn,
    jobs: Jobs | None = None,
    *,
    kind: str | None = None,
    queue: str | None = None,
    status: Living | None = None,
    older_than: timedelta | float | None = None,
    key: str | None = None,
    force: bool = False,
    grace: timedelta | float = GRACE_S,
    dry_run: bool = False,
    schema: str | None = None,
) -> Coroutine[Any, Any, Cancelled]: ...
def cancel_jobs(
    conn: UserConn | AsyncUserConn,
    jobs: Jobs | None = None,
    *,
    kind: str | None = None,
    queue: str | None = None,
    status: Living | None = None,
    older_than: timedelta | float | None = None,
    key: str | None = None,
    force: bool = False,
    grace: timedelta | float = GRACE_S,
    dry_run: bool = False,
    schema: str | None = None,
) -> Cancelled | Coroutine[Any, Any, Cancelled]:
    """Cancel *jobs*, or all that the filter names: queued ones leave the queue, running ones are told to stop.

    Args:
        conn: Any connection that `enqueue` takes; on an async one, await the answer.
        jobs: Answers of enqueues, or ids; one, or several. Then no filter is given.
        kind, queue: Only those of it.
        status: Only "queued" or only "running" ones.
        older_than: Only those that were enqueued longer ago; seconds or a timedelta.
        key: Only those with this unique, ordering, concurrency or rate key.
        force: Where a handler has not stopped after *grace* (seconds or a timedelta), its supervisor ends the
            worker process; what else runs in it goes back to the queue, uncharged.
        dry_run: Only count what the filter names.

    Raises:
        InvalidJob: before any statement: neither jobs nor a filter, or a bad value.
        SchemaMissing: the database is not migrated.
    """
    where = queue_schema(schema)
    kill_s = check_seconds("grace", grace, MAX_GRACE_S, zero=True) if force else None
    wanted = _filter(jobs, kind, queue, status, ("queued", "running"), older_than, key)

    def steps(is_open: bool) -> Steps[Cancelled]:
        if wanted is None:
            rows = yield from _tried(where, Step(_text(_CANCEL, where), (_ids(jobs), kill_s)), is_open)
            return Cancelled(*rows[0])
        upto = yield from _last_id(where)
        # The queued ones first: else each running one that is told to stop makes room for one of them. What has gone
        # back to the queue meanwhile is found with the running ones.
        both = status is None and not dry_run
        cancelled = asked = 0
        for one in [wanted._replace(statuses=("queued",)), wanted] if both else [wanted]:
            done = yield from _batches(
                where,
                _CANCEL_JOBS,
                lambda after, one=one: (*one.arguments(), after, upto, MOST, kill_s, int(dry_run)),
                is_open,
            )
            cancelled, asked = cancelled + done[0], asked + done[1]
        return Cancelled(cancelled, asked)

    if wanted is None and dry_run:
        raise InvalidJob("dry_run", "is for filters, not for jobs")
    return cast("Cancelled | Coroutine[Any, Any, Cancelled]", _run(conn, steps))


@overload
def retry_jobs(
    conn: UserConn,
    jobs: Jobs | None = None,
    *,
    kind: str | None = None,
    queue: str | None = None,
    status: Ended = "dead",
    older_than: timedelta | float | None = None,
    key: str | None = None,
    dry_run: bool = False,
    schema: str | None = None,
) -> Retried: ...
@overload
def retry_jobs(
    conn: AsyncUserConn,
    jobs: Jobs | None = None,
    *,
    kind: str | None = None,
    queue: str | None = None,
    status: Ended = "dead",
    older_than: timedelta | float | None = None,
    key: str | None = None,
    dry_run: bool = False,
    schema: str | None = None,
) -> Coroutine[Any, Any, Retried]: ...
def retry_jobs(
    conn: UserConn | AsyncUserConn,
    jobs: Jobs | None = None,
    *,
    kind: str | None = None,
    queue: str | None = None,
    status: Ended = "dead",
    older_than: timedelta | float | None = None,
    key: str | None = None,
    dry_run: bool = False,
    schema: str | None = None,
) -> Retried | Coroutine[Any, Any, Retried]:
    """Put dead (or, by *status*, cancelled) jobs back into their queues with their counts reset. As `cancel_jobs`.

    Of *jobs* given by id a unique key that a living job holds is the database's error (23505), and none is put back.
    """
    where = queue_schema(schema)
    wanted = _filter(jobs, kind, queue, status, ("dead", "cancelled"), older_than, key, also=status == "cancelled")

    def steps(is_open: bool) -> Steps[Retried]:
        if wanted is None:
            rows = yield from sent(where, Step(_text(_RETRY, where), (_ids(jobs),)))
            return Retried(rows[0][0], 0)
        upto = yield from _last_id(where)
        retried, taken = yield from _batches(
            where, _RETRY_JOBS, lambda after: (*wanted.arguments(), after, upto, MOST, int(dry_run)), is_open
        )
        return Retried(retried, taken)

    if wanted is None and dry_run:
        raise InvalidJob("dry_run", "is for filters, not for jobs")
    return cast("Retried | Coroutine[Any, Any, Retried]", _run(conn, steps))


@overload
def release_order(conn: UserConn, jobs: Jobs, *, schema: str | None = None) -> int: ...
@overload
def release_order(conn: AsyncUserConn, jobs: Jobs, *, schema: str | None = None) -> Coroutine[Any, Any, int]: ...
def release_order(
    conn: UserConn | AsyncUserConn, jobs: Jobs, *, schema: str | None = None
) -> int | Coroutine[Any, Any, int]:
    """Let the next ones go whose ordering keys dead *jobs* hold (`on_dead="hold"`); how many of them held one.

    For jobs that are not to be retried; one that is retried all the same has its key again.

    Raises:
        InvalidJob: before any statement: not answers of enqueues or ids.
        SchemaMissing: the database is not migrated.
    """
    where = queue_schema(schema)
    ids = _ids(jobs)

    def steps(is_open: bool) -> Steps[int]:
        rows = yield from sent(where, Step(_text(_RELEASE, where), (ids,)))
        return int(rows[0][0])

    return cast("int | Coroutine[Any, Any, int]", _run(conn, steps))


def _run(conn: UserConn | AsyncUserConn, steps: Any) -> Any:
    theirs = adapter_of(conn)
    line: Any = Plain(cast("Any", conn)) if theirs is None else theirs
    return line.run_async(steps) if line.is_async else line.run(steps)


def _batches(schema: str, text: str, arguments: Any, is_open: bool) -> Generator[Step, list[Row], tuple[int, int]]:
    first = second = 0
    after: int | None = 0
    while after is not None:
        [row] = yield from _tried(schema, Step(_text(text, schema), arguments(after)), is_open)
        first, second, after = first + row[0], second + row[1], row[2]
    return first, second


def _tried(schema: str, step: Step, is_open: bool) -> Steps[list[Row]]:
    """A job claimed meanwhile can make the server undo a statement as a deadlock: it is sent again, if it may be."""
    for left in range(_TRIES - 1, -1, -1):
        try:
            return (yield from sent(schema, step))
        except Exception as error:
            if is_open or not left or sqlstate(error) != "40P01":
                raise
    raise AssertionError("unreachable")


def _last_id(schema: str) -> Steps[int]:
    rows = yield from sent(schema, Step(statement("last_id", schema).decode()))
    return int(rows[0][0])


def _text(text: str, schema: str) -> str:
    return render(text.strip(), schema)


def _filter(
    jobs: object,
    kind: str | None,
    queue: str | None,
    status: str | None,
    allowed: tuple[str, ...],
    older_than: object,
    key: str | None,
    *,
    also: bool = False,
) -> _Filter | None:
    given = any(value is not None for value in (kind, queue, older_than, key))
    given = given or (status is not None if "queued" in allowed else also)
    if (jobs is None) != given:
        raise InvalidJob("jobs", "or a filter must be given: one of the two")
    if jobs is not None:
        return None
    if kind is not None:
        check_name("kind", kind)
    if queue is not None:
        check_name("queue", queue)
    if key is not None:
        check_key("key", key)
    if status is not None and status not in allowed:
        raise InvalidJob("status", f"must be of {', '.join(allowed)}")
    older_s = None if older_than is None else check_seconds("older_than", older_than, MAX_AGE_S, zero=True)
    return _Filter(kind, queue, allowed if status is None else (status,), older_s, key)


def _ids(jobs: Any) -> str:
    listed = [jobs] if isinstance(jobs, int | Enqueued) else list(jobs)
    ids = [one.id if isinstance(one, Enqueued) else one for one in listed]
    for one in ids:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 < one < 2**63:
            raise InvalidJob("jobs", "must be answers of enqueues, or ids")
    return numbers(ids)
