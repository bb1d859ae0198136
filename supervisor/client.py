"""Enqueue jobs in the caller's own transaction.

    with conn.transaction():
        create_user(conn, ...)
        enqueue(conn, "email.welcome", {"user_id": 7})      # exists exactly when the user does

Works on a psycopg Connection and, awaited, on an AsyncConnection, in whatever
state it is: in a transaction, a savepoint, a pipeline, autocommit, with any row
factory. Likewise on connections of Django, SQLAlchemy and asyncpg (adapters/).
By kind for producers that do not import handlers; with a Handler, its
defaults apply and the payload is validated as its arguments.

    enqueue, handler.enqueue ----> one ---> one statement
    enqueue_many, .enqueue_many -> many --> one statement; when large and without keys or parents COPY,
                                            or parts where the role may call the functions only,
                                            and on connections of other libraries
    enqueue_batch ---------------> many --> likewise without COPY, and the job that comes after all

Always true: a refusal (InvalidJob) or a UniqueConflict leaves the caller's
transaction as it was: it can go on and commit. Nothing is committed, rolled back
or closed here; a bulk is stored whole or not at all.

Elsewhere: checks (newjob.py, payload.py); statements (db/enqueue.py); the span around each (trace.py).
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, cast, overload

from supervisor import adapters
from supervisor.db import enqueue as statements
from supervisor.db import steps
from supervisor.db.statements import queue_schema
from supervisor.errors import InvalidJob, UniqueConflict
from supervisor.handler import BoundHandler, Handler, install_enqueuer
from supervisor.keys import Enqueued, EnqueuedBatch
from supervisor.newjob import Alike, EnqueueOptions, JobOptions, NewJob, OnConflict, elements, job_options, variants
from supervisor.trace import Sending, sending

if TYPE_CHECKING:
    from supervisor.adapters import Adapter
    from supervisor.adapters.protocols import AsyncUserConn, UserConn
    from supervisor.db.enqueue import Answer, AsyncConn, Bulk, SyncConn
    from supervisor.db.steps import Steps
    from supervisor.payload import JsonText

__all__ = [
    "EnqueueOptions", "Enqueued", "EnqueuedBatch", "JobOptions", "NewJob", "enqueue", "enqueue_batch", "enqueue_many",
]  # fmt: skip

#: From this many jobs on, without keys and parents, COPY is faster than one statement.
COPY_ABOVE: Final = 2000

#: One jsonb value holds 256 MB; a bulk larger than this goes by COPY or, without unique keys, in parts.
MAX_DOCUMENT_BYTES: Final = 128 * 1024 * 1024

#: A part of a bulk on another library's connection: it may quote, copy and log what it sends.
PART_BYTES: Final = 8 * 1024 * 1024

T = TypeVar("T")


@overload
def enqueue(
    conn: UserConn,
    kind: str | Handler[Any],
    payload: Mapping[str, Any] | None = None,
    **options: Unpack[EnqueueOptions],
) -> Enqueued: ...
@overload
def enqueue(
    conn: AsyncUserConn,
    kind: str | Handler[Any],
    payload: Mapping[str, Any] | None = None,
    **options: Unpack[EnqueueOptions],
) -> Coroutine[Any, Any, Enqueued]: ...
def enqueue(
    conn: UserConn | AsyncUserConn,
    kind: str | Handler[Any],
    payload: Mapping[str, Any] | None = None,
    **options: Unpack[EnqueueOptions],
) -> Enqueued | Coroutine[Any, Any, Enqueued]:
    """Add one job, in the transaction *conn* is in. On an async connection, await the answer.

    Args:
        conn: A psycopg Connection or AsyncConnection, an asyncpg Connection, a Django connection, or a SQLAlchemy
            Connection, Session, AsyncConnection or AsyncSession. It is not committed, rolled back or closed.
        kind: The handler's name, or the Handler.
        payload: Its arguments by name; any mapping that JSON can hold.

    The options are those of EnqueueOptions: queue, priority, run_at or in_, max_attempts, max_crashes,
    timeout, unique_key, unique_for, unique_states, on_conflict, headers, schema; and what a job waits for:
    ordering_key, concurrency_key, rate_key, after, with their own.

    Returns:
        The job's id, and whether it was created: not, when another job holds the unique key.

    Raises:
        InvalidJob: before any statement, with the field named; for parents that there have never been, or that
            wait for this job, after one that changes nothing. The transaction can go on.
        UniqueConflict: with on_conflict="raise". Nothing was added and the transaction can go on.
        SchemaMissing: the database is not migrated; its error aborted the transaction.
    """
    if isinstance(kind, Handler):
        job = kind.at(**options).from_payload({} if payload is None else payload)
    else:
        job = NewJob(kind, payload, **job_options(options))
    return _CLIENT.one(conn, job, job.payload_json, options.get("on_conflict"), options.get("schema"))


@overload
def enqueue_many(
    conn: UserConn, jobs: Iterable[NewJob], *, on_conflict: OnConflict | None = None, schema: str | None = None
) -> list[Enqueued]: ...
@overload
def enqueue_many(
    conn: AsyncUserConn, jobs: Iterable[NewJob], *, on_conflict: OnConflict | None = None, schema: str | None = None
) -> Coroutine[Any, Any, list[Enqueued]]: ...
def enqueue_many(
    conn: UserConn | AsyncUserConn,
    jobs: Iterable[NewJob],
    *,
    on_conflict: OnConflict | None = None,
    schema: str | None = None,
) -> list[Enqueued] | Coroutine[Any, Any, list[Enqueued]]:
    """Add many jobs: the same jobs, with the same answers, as that many single calls in this order.

    All or none, in the transaction *conn* is in. One statement; above 2,000 jobs without keys and parents,
    COPY, where the role may insert jobs other than by the function. With on_conflict="raise" a single
    taken key raises UniqueConflict for the first one and takes back the whole bulk, but nothing else of
    the transaction: the caller decides whether to go on.

    Raises:
        InvalidJob: before any statement (a NewJob is checked when it is made); of parents as `enqueue`.
        UniqueConflict: as above.
        SchemaMissing: the database is not migrated; its error aborted the transaction.
    """
    listed = list(jobs)
    for index, job in enumerate(listed):
        if not isinstance(job, NewJob):
            raise InvalidJob(f"jobs[{index}]", f"must be a NewJob, not {type(job).__name__}")
    return _CLIENT.many(conn, listed, on_conflict, schema)


@overload
def enqueue_batch(
    conn: UserConn,
    jobs: Iterable[NewJob],
    then: NewJob | BoundHandler[Any],
    *,
    on_conflict: OnConflict | None = None,
    schema: str | None = None,
) -> EnqueuedBatch: ...
@overload
def enqueue_batch(
    conn: AsyncUserConn,
    jobs: Iterable[NewJob],
    then: NewJob | BoundHandler[Any],
    *,
    on_conflict: OnConflict | None = None,
    schema: str | None = None,
) -> Coroutine[Any, Any, EnqueuedBatch]: ...
def enqueue_batch(
    conn: UserConn | AsyncUserConn,
    jobs: Iterable[NewJob],
    then: NewJob | BoundHandler[Any],
    *,
    on_conflict: OnConflict | None = None,
    schema: str | None = None,
) -> EnqueuedBatch | Coroutine[Any, Any, EnqueuedBatch]:
    """Add many jobs, and one that runs when all of them have ended; any number, all or none, as `enqueue_many`.

    Args:
        jobs: As for `enqueue_many`; may be empty: then *then* waits for nothing. One that was not created, since
            another has its unique key, is stood for by that one.
        then: The job that comes after, as in `then=report.new_job(day)`, or a handler whose job has no arguments.
            It runs whatever became of the others; with after_failed="hold" or "cancel" of its own it waits for the
            retry of dead ones, or is cancelled with the first. Jobs in its own *after* are waited for too.
        on_conflict: For all of them.

    Raises:
        As `enqueue_many`.
    """
    listed = list(jobs)
    for index, job in enumerate(listed):
        if not isinstance(job, NewJob):
            raise InvalidJob(f"jobs[{index}]", f"must be a NewJob, not {type(job).__name__}")
    last = then.new_job() if isinstance(then, BoundHandler) else then
    if not isinstance(last, NewJob):
        raise InvalidJob("then", f"must be a NewJob, not {type(last).__name__}")
    answers = _bulk(conn, listed, last, on_conflict, schema)
    if isinstance(answers, list):
        return EnqueuedBatch(answers[:-1], answers[-1])
    return _split(answers)


async def _split(coming: Coroutine[Any, Any, list[Enqueued]]) -> EnqueuedBatch:
    answers = await coming
    return EnqueuedBatch(answers[:-1], answers[-1])


class _Client:
    """The two ways to send, for this module and for handlers."""

    def one(
        self,
        conn: UserConn | AsyncUserConn,
        like: NewJob,
        payload: JsonText,
        on_conflict: str | None,
        schema: str | None,
    ) -> Enqueued | Coroutine[Any, Any, Enqueued]:
        """Send the job that is as *like*, but for its payload."""
        where, word = queue_schema(schema), _conflict_word(on_conflict)
        theirs = adapter_of(conn)
        if theirs is not None:
            return (
                _one_theirs_async(theirs, where, like, payload, word)
                if theirs.is_async
                else _one_theirs(theirs, where, like, payload, word)
            )
        if takes_await(conn):
            return _one_async(cast("AsyncConn", conn), where, like, payload, word)
        with sending([like]) as span:
            [carried] = span.carried([like])
            answer = statements.one(cast("SyncConn", conn), where, carried, payload, _asked(word))
            span.stored([answer])
            return _judge([like], word, [answer])[0]

    def many(
        self, conn: UserConn | AsyncUserConn, jobs: Sequence[NewJob], on_conflict: str | None, schema: str | None
    ) -> list[Enqueued] | Coroutine[Any, Any, list[Enqueued]]:
        return _bulk(conn, jobs, None, on_conflict, schema)


def _bulk(
    conn: UserConn | AsyncUserConn,
    jobs: Sequence[NewJob],
    last: NewJob | None,
    on_conflict: str | None,
    schema: str | None,
) -> list[Enqueued] | Coroutine[Any, Any, list[Enqueued]]:
    """Send *jobs* and, after all of them, *last*; the answers in this order."""
    where, word = queue_schema(schema), _conflict_word(on_conflict)
    theirs = adapter_of(conn)
    if theirs is not None:
        if theirs.is_async:
            return _many_theirs_async(theirs, where, jobs, last, word)
        return _many_theirs(theirs, where, jobs, last, word)
    if takes_await(conn):
        return _many_async(cast("AsyncConn", conn), where, jobs, last, word)
    if not jobs and last is None:
        return []
    sync = cast("SyncConn", conn)
    with sending(_all(variants(jobs), last), len(jobs) + (last is not None)) as span:
        jobs, last = _carried(span, jobs, last)
        bulk = _of_statements(sync, jobs, last, word)
        if bulk is None:
            copied = statements.copy(sync, where, jobs, _created)
            if copied is not None:
                return copied
            bulk = _of_parts(jobs, last, word)
        return statements.many(sync, where, bulk, lambda answers: _judge(_all(jobs, last), word, answers))


async def _one_async(conn: AsyncConn, schema: str, like: NewJob, payload: JsonText, word: str) -> Enqueued:
    with sending([like]) as span:
        [carried] = span.carried([like])
        answer = await statements.one_async(conn, schema, carried, payload, _asked(word))
        span.stored([answer])
        return _judge([like], word, [answer])[0]


async def _many_async(
    conn: AsyncConn, schema: str, jobs: Sequence[NewJob], last: NewJob | None, word: str
) -> list[Enqueued]:
    if not jobs and last is None:
        return []
    with sending(_all(variants(jobs), last), len(jobs) + (last is not None)) as span:
        jobs, last = _carried(span, jobs, last)
        bulk = _of_statements(conn, jobs, last, word)
        if bulk is None:
            copied = await statements.copy_async(conn, schema, jobs, _created)
            if copied is not None:
                return copied
            bulk = _of_parts(jobs, last, word)
        return await statements.many_async(conn, schema, bulk, lambda answers: _judge(_all(jobs, last), word, answers))


def _one_theirs(theirs: Adapter, schema: str, like: NewJob, payload: JsonText, word: str) -> Enqueued:
    with sending([like]) as span:
        [carried] = span.carried([like])
        answer = theirs.run(lambda _: _one_steps(schema, carried, payload, word))
        span.stored([answer])
        return _judge([like], word, [answer])[0]


async def _one_theirs_async(theirs: Adapter, schema: str, like: NewJob, payload: JsonText, word: str) -> Enqueued:
    with sending([like]) as span:
        [carried] = span.carried([like])
        answer = await theirs.run_async(lambda _: _one_steps(schema, carried, payload, word))
        span.stored([answer])
        return _judge([like], word, [answer])[0]


def _many_theirs(
    theirs: Adapter, schema: str, jobs: Sequence[NewJob], last: NewJob | None, word: str
) -> list[Enqueued]:
    if not jobs and last is None:
        return []
    with sending(_all(variants(jobs), last), len(jobs) + (last is not None)) as span:
        jobs, last = _carried(span, jobs, last)
        bulk = _of_parts(jobs, last, word, PART_BYTES)
        return theirs.run(lambda is_open: _many_steps(schema, _all(jobs, last), word, bulk, is_open))


async def _many_theirs_async(
    theirs: Adapter, schema: str, jobs: Sequence[NewJob], last: NewJob | None, word: str
) -> list[Enqueued]:
    if not jobs and last is None:
        return []
    with sending(_all(variants(jobs), last), len(jobs) + (last is not None)) as span:
        jobs, last = _carried(span, jobs, last)
        bulk = _of_parts(jobs, last, word, PART_BYTES)
        return await theirs.run_async(lambda is_open: _many_steps(schema, _all(jobs, last), word, bulk, is_open))


def _one_steps(schema: str, like: NewJob, payload: JsonText, word: str) -> Steps[Answer]:
    question = statements.question([like], _asked(word))
    if question is not None:
        statements.refuse((yield from steps.asked(schema, statements.ASK, (question,))), ("",))
    text, args = statements.single(like, payload, _asked(word))
    return (yield from steps.one(schema, text, args, statements.answer))


def _many_steps(schema: str, jobs: Sequence[NewJob], word: str, bulk: Bulk, is_open: bool) -> Steps[list[Enqueued]]:
    if bulk.question is not None:
        statements.refuse((yield from steps.asked(schema, statements.ASK, (bulk.question,))), bulk.fields)

    def last(answers: list[Answer]) -> tuple[str, tuple[Any, ...]]:
        return statements.LAST, (bulk.last, statements.id_array(answers))

    result: list[Enqueued] = yield from steps.many(
        schema,
        statements.MANY,
        bulk.documents,
        statements.answer,
        lambda answers: _judge(jobs, word, answers),
        undoable=bulk.undoable,
        in_transaction=is_open,
        last=None if bulk.last is None else last,
    )
    return result


def _judge(jobs: Sequence[NewJob], word: str, answers: Sequence[Answer]) -> list[Enqueued]:
    """The answers for the caller; UniqueConflict when it asked for that and a key was taken."""
    if word == "raise":
        taken = [(job.unique_key, job_id) for job, (job_id, created) in zip(jobs, answers, strict=True) if not created]
        if taken:
            key, job_id = taken[0]
            raise UniqueConflict(key or "", job_id, len(taken) - 1)
    return list(map(Enqueued._make, answers))


def _created(ids: Sequence[int]) -> list[Enqueued]:
    return list(map(Enqueued._make, zip(ids, repeat(True), strict=False)))


def _asked(word: str) -> str:
    # An error of the database would abort the caller's transaction, so "raise" is this side's work.
    return "skip" if word == "raise" else word


def _all(jobs: Sequence[NewJob], last: NewJob | None) -> Sequence[NewJob]:
    return jobs if last is None else [*jobs, last]


def _carried(span: Sending, jobs: Sequence[NewJob], last: NewJob | None) -> tuple[Sequence[NewJob], NewJob | None]:
    if isinstance(jobs, Alike) and last is None:
        [first] = span.carried([jobs.first])
        return Alike(first, jobs.payloads), None
    carried = span.carried(_all(jobs, last))
    return (carried, None) if last is None else (carried[:-1], carried[-1])


def _of_statements(conn: SyncConn | AsyncConn, jobs: Sequence[NewJob], last: NewJob | None, word: str) -> Bulk | None:
    """The bulk as statements, or None when it goes by COPY if the role may."""
    copies = last is None and all(job.plain for job in variants(jobs)) and not statements.in_pipeline(conn)
    if copies and len(jobs) > COPY_ABOVE:
        return None
    bulk = _of_parts(jobs, last, word)
    return None if copies and len(bulk.documents) > 1 else bulk


def _of_parts(jobs: Sequence[NewJob], last: NewJob | None, word: str, most: int = MAX_DOCUMENT_BYTES) -> Bulk:
    """The bulk as statements of about *most* bytes."""
    asked = _asked(word)
    asking = any("after" in job.more for job in _all(variants(jobs), last))
    question = statements.question(_all(jobs, last), asked) if asking else None
    return statements.Bulk(
        documents=_parts(jobs, asked, most),
        question=question,
        fields=() if question is None else [*(f"jobs[{index}]." for index in range(len(jobs))), "then."],
        last=None if last is None else last.element(asked),
        undoable=word == "raise",
    )


def _parts(jobs: Sequence[NewJob], asked: str, most: int = MAX_DOCUMENT_BYTES) -> list[str]:
    """The bulk as JSON arrays of about *most* bytes. Keys are taken in one order, so they go in one."""
    keyed = any(job.unique_key is not None for job in variants(jobs))
    if keyed:
        most = MAX_DOCUMENT_BYTES
    parts: list[list[str]] = [[]]
    total = size = 0
    for element in elements(jobs, asked):
        length = len(element) if element.isascii() else len(element.encode())
        if parts[-1] and size + length > most:
            parts.append([])
            size = 0
        parts[-1].append(element)
        size += length
        total += length
    if not parts[-1]:
        return []
    if len(parts) > 1 and keyed:
        raise InvalidJob(
            "jobs", f"are {total} bytes in one bulk, the limit is {MAX_DOCUMENT_BYTES}: send them in parts"
        )
    return [f"[{','.join(part)}]" for part in parts]


def takes_await(conn: object) -> bool:
    """Whether *conn* is an async connection; InvalidJob when it is no connection at all."""
    answer = statements.is_async(conn)
    if answer is None:
        hint = "; take a connection from the pool" if "Pool" in type(conn).__name__ else ""
        found = type(conn).__name__
        raise InvalidJob("conn", f"must be a psycopg Connection or AsyncConnection, not {found}{hint}")
    return answer


def adapter_of(conn: object) -> Adapter | None:
    """The adapter for another library's connection; None for psycopg's own.

    Raises:
        InvalidJob: *conn* is no connection at all, or one that cannot be used.
    """
    if statements.is_async(conn) is not None:
        return None
    theirs = adapters.of(conn)
    if theirs is None:
        name = type(conn).__name__
        factory = any(word in name for word in ("Pool", "Engine", "sessionmaker"))
        hint = f"; take a connection from the {'pool' if 'Pool' in name else 'engine'}" if factory else ""
        raise InvalidJob("conn", f"must be {adapters.SUPPORTED}, not {name}{hint}")
    return theirs


def _conflict_word(on_conflict: str | None) -> str:
    word = "skip" if on_conflict is None else on_conflict
    if word not in ("skip", "replace", "raise"):
        raise InvalidJob("on_conflict", "must be 'skip', 'replace' or 'raise'")
    return word


_CLIENT: Final = _Client()
install_enqueuer(_CLIENT)
