"""Sending checked jobs on a connection that belongs to the caller.

    one    select ... enqueue(...)              one round trip
    many   select ... enqueue_many(jsonb)       one statement, keys included; of a batch, then its last job
    copy   reserve ids, then COPY               thousands of plain jobs, for a role that may insert rows itself;
                                                others (producers) send them by `many`

Parents (after) are asked for first, in a statement of their own: only the database knows them, and an error of its
would abort the caller's transaction.

Always true: the caller's connection is used and left as it was. Nothing is
committed, rolled back or closed; its row factory, cursor factory and prepared
statements are not touched (so PgBouncer in transaction mode is fine). Each form
exists twice, for sync and async connections; what they send is built once.

Elsewhere: checking (supervisor/newjob.py); who calls this (supervisor/client.py); connections of other libraries
(steps.py, supervisor/adapters); the SQL functions (functions/030_enqueue.sql).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, errors, pq
from psycopg.rows import tuple_row

from supervisor.db.statements import render
from supervisor.errors import InvalidJob, SchemaMissing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from supervisor.newjob import NewJob

SyncConn: TypeAlias = Connection[Any]
AsyncConn: TypeAlias = AsyncConnection[Any]
Answer: TypeAlias = "tuple[int, bool]"
T = TypeVar("T")

# By position and to the last: naming parameters, and reading their defaults, takes the server a tenth of the whole.
ONE: Final = """
select id, created
  from {schema}.enqueue(
       %s::text, %s::jsonb, %s::text, %s::int, %s::timestamptz, make_interval(secs => %s::float8), %s::int, %s::int,
       make_interval(secs => %s::float8), %s::text, %s::text, %s::jsonb,
       null, 'next', null, null, null, null, null, null, 'hold', null, null)
"""

ONE_MORE: Final = """
select id, created
  from {schema}.enqueue(
       %s::text, %s::jsonb, %s::text, %s::int, %s::timestamptz, make_interval(secs => %s::float8), %s::int, %s::int,
       make_interval(secs => %s::float8), %s::text, %s::text, %s::jsonb,
       ordering_key => %s::text, on_dead => %s::text, concurrency_key => %s::text, concurrency_limit => %s::int,
       rate_key => %s::text, rate_limit => %s::int, rate_period => make_interval(secs => %s::float8),
       after => %s::bigint[], after_failed => %s::text, unique_for => make_interval(secs => %s::float8),
       unique_states => %s::text[])
"""
_MORE: Final = (
    "ordering_key", "on_dead", "concurrency_key", "concurrency_limit", "rate_key", "rate_limit", "rate_period",
    "after", "after_failed", "unique_for", "unique_states",
)  # fmt: skip

LAST: Final = "select id, created from {schema}.enqueue_batch('[]', %s::jsonb, %s::bigint[])"

ASK: Final = "select ord, problem from {schema}.after_problem(%s::jsonb) limit 1"

MANY: Final = "select id, created from {schema}.enqueue_many(%s::jsonb) order by ord"

# The clock is read with the ids, so that run_at is the database's time here too. One null row where the role
# may not insert by itself: asking is cheap, while being refused would abort the caller's transaction.
_RESERVE: Final = """
with may as materialized (
    select s.id,
           has_table_privilege({schema_literal} || '.job', 'insert') and has_sequence_privilege(s.id, 'usage') as insert
      from (select pg_get_serial_sequence({schema_literal} || '.job', 'id')::regclass::oid) as s (id))
select case when may.insert then nextval(may.id) end, (extract(epoch from statement_timestamp()) * 1000000)::int8
  from may cross join lateral generate_series(1, case when may.insert then %s::int else 1 end)
"""

_COPY: Final = """
copy {schema}.job (id, run_at, priority, queue, kind, max_attempts, max_crashes, timeout, payload, headers) from stdin
"""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INFINITE_US: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


@cache
def query_for(text: str, schema: str) -> bytes:
    """*text* for *schema*, made once."""
    return render(text.strip(), schema).encode()


def is_async(conn: object) -> bool | None:
    """Whether *conn* is a psycopg AsyncConnection (True) or Connection (False); None when it is neither."""
    if isinstance(conn, AsyncConnection):
        return True
    return False if isinstance(conn, Connection) else None


def in_pipeline(conn: SyncConn | AsyncConn) -> bool:
    """Whether *conn* is in pipeline mode, where PostgreSQL has no COPY."""
    return conn.pgconn.pipeline_status != pq.PipelineStatus.OFF


@dataclass(frozen=True, slots=True)
class Bulk:
    """What is sent for many jobs, all or none.

    Attributes:
        documents: The jobs, as JSON arrays.
        question: What is asked of their parents before; None if they have none.
        fields: What a job is called in errors, by its place in the question.
        last: The job that comes after all of them, as a JSON object; None if there is none.
        undoable: Whether an exception of whoever judges the answers takes the jobs back, and only them.
    """

    documents: Sequence[str]
    question: str | None
    fields: Sequence[str]
    last: str | None
    undoable: bool

    @property
    def guarded(self) -> bool:
        """Whether a savepoint is needed around it."""
        return self.undoable or self.last is not None or len(self.documents) > 1


def one(conn: SyncConn, schema: str, job: NewJob, on_conflict: str) -> Answer:
    """Add one job; (id, created)."""
    with schema_errors(schema), Cursor(conn, row_factory=tuple_row) as cur:
        asked = question([job], on_conflict)
        if asked is not None:
            refuse(cur.execute(query_for(ASK, schema), (asked,), prepare=False).fetchall(), ("",))
        text, args = single(job, on_conflict)
        cur.execute(query_for(text, schema), args, prepare=False)
        return answer(cur.fetchone())


async def one_async(conn: AsyncConn, schema: str, job: NewJob, on_conflict: str) -> Answer:
    """As `one`."""
    with schema_errors(schema):
        async with AsyncCursor(conn, row_factory=tuple_row) as cur:
            asked = question([job], on_conflict)
            if asked is not None:
                await cur.execute(query_for(ASK, schema), (asked,), prepare=False)
                refuse(await cur.fetchall(), ("",))
            text, args = single(job, on_conflict)
            await cur.execute(query_for(text, schema), args, prepare=False)
            return answer(await cur.fetchone())


def many(conn: SyncConn, schema: str, bulk: Bulk, judge: Callable[[list[Answer]], T]) -> T:
    """Add the jobs of *bulk*; *judge* makes the result of the (id, created) in their order, the last job's last.

    All or none. Where it is undoable, an exception of *judge* takes the jobs back, and only them.
    """
    with schema_errors(schema), Cursor(conn, row_factory=tuple_row) as cur:

        def send() -> T:
            answers: list[Answer] = []
            for document in bulk.documents:
                cur.execute(query_for(MANY, schema), (document,), prepare=False)
                answers += [answer(row) for row in cur.fetchall()]
            if bulk.last is not None:
                cur.execute(query_for(LAST, schema), (bulk.last, id_array(answers)), prepare=False)
                answers.append(answer(cur.fetchone()))
            return judge(answers)

        if bulk.question is not None:
            refuse(cur.execute(query_for(ASK, schema), (bulk.question,), prepare=False).fetchall(), bulk.fields)
        if not bulk.guarded:
            return send()
        with savepoint(conn, cur):
            return send()


async def many_async(conn: AsyncConn, schema: str, bulk: Bulk, judge: Callable[[list[Answer]], T]) -> T:
    """As `many`."""
    with schema_errors(schema):
        async with AsyncCursor(conn, row_factory=tuple_row) as cur:

            async def send() -> T:
                answers: list[Answer] = []
                for document in bulk.documents:
                    await cur.execute(query_for(MANY, schema), (document,), prepare=False)
                    answers += [answer(row) for row in await cur.fetchall()]
                if bulk.last is not None:
                    await cur.execute(query_for(LAST, schema), (bulk.last, id_array(answers)), prepare=False)
                    answers.append(answer(await cur.fetchone()))
                return judge(answers)

            if bulk.question is not None:
                await cur.execute(query_for(ASK, schema), (bulk.question,), prepare=False)
                refuse(await cur.fetchall(), bulk.fields)
            if not bulk.guarded:
                return await send()
            async with savepoint_async(conn, cur):
                return await send()


def copy(conn: SyncConn, schema: str, jobs: Sequence[NewJob]) -> list[int] | None:
    """Add *jobs*, plain ones, by COPY; their ids in order. None: this role may not, nothing was done."""
    with schema_errors(schema), Cursor(conn, row_factory=tuple_row) as cur:
        cur.execute(query_for(_RESERVE, schema), (len(jobs),), prepare=False)
        reserved = _Reserved.of(cur.fetchall())
        if reserved is None:
            return None
        with cur.copy(query_for(_COPY, schema)) as out:
            for row in reserved.rows(jobs):
                out.write_row(row)
        return reserved.ids


async def copy_async(conn: AsyncConn, schema: str, jobs: Sequence[NewJob]) -> list[int] | None:
    """As `copy`."""
    with schema_errors(schema):
        async with AsyncCursor(conn, row_factory=tuple_row) as cur:
            await cur.execute(query_for(_RESERVE, schema), (len(jobs),), prepare=False)
            reserved = _Reserved.of(await cur.fetchall())
            if reserved is None:
                return None
            async with cur.copy(query_for(_COPY, schema)) as out:
                for row in reserved.rows(jobs):
                    await out.write_row(row)
            return reserved.ids


@dataclass(frozen=True, slots=True)
class _Reserved:
    """Ids for a COPY, and the database's clock when they were given, in microseconds since 1970."""

    ids: list[int]
    now_us: int

    @classmethod
    def of(cls, rows: list[tuple[Any, ...]]) -> _Reserved | None:
        if rows[0][0] is None:
            return None
        return cls(sorted(int(row[0]) for row in rows), int(rows[0][1]))

    def rows(self, jobs: Sequence[NewJob]) -> Iterator[tuple[object, ...]]:
        for job_id, job in zip(self.ids, jobs, strict=True):
            yield (
                job_id,
                _at(self._due_us(job)),
                job.priority,
                job.queue,
                job.kind,
                job.max_attempts,
                job.max_crashes,
                None if job.timeout_s is None else f"{job.timeout_s:.6f} seconds",
                job.payload_json,
                job.headers_json,
            )

    def _due_us(self, job: NewJob) -> int:
        if job.run_at is not None:
            return max(self.now_us, (job.run_at - _EPOCH) // timedelta(microseconds=1))
        return min(self.now_us + round((job.delay_s or 0.0) * 1_000_000), _INFINITE_US)


def _at(microseconds: int) -> str:
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat()


def parameters(job: NewJob, on_conflict: str) -> tuple[object, ...]:
    """The arguments of ONE, and the first ones of ONE_MORE."""
    return (
        job.kind,
        job.payload_json,
        job.queue,
        job.priority,
        job.run_at_text,
        job.delay_s,
        job.max_attempts,
        job.max_crashes,
        job.timeout_s,
        job.unique_key,
        on_conflict,
        job.headers_json,
    )


def single(job: NewJob, on_conflict: str) -> tuple[str, tuple[object, ...]]:
    """The statement that adds one job, ONE or ONE_MORE, and its arguments: texts and numbers."""
    args = parameters(job, on_conflict)
    if not job.more:
        return ONE, args
    more = {name: _literal(value) if isinstance(value, list) else value for name, value in job.more.items()}
    return ONE_MORE, args + tuple(more.get(name, _USUAL.get(name)) for name in _MORE)


_USUAL: Final = {"on_dead": "next", "after_failed": "hold"}


def question(jobs: Sequence[NewJob], on_conflict: str) -> str | None:
    """What ASK is asked of the parents of *jobs*; None when none has any."""
    if not any("after" in job.more for job in jobs):
        return None
    return json.dumps(
        [
            {"after": job.more["after"], "unique_key": job.unique_key, "on_conflict": on_conflict}
            if "after" in job.more
            else {}
            for job in jobs
        ]
    )


def refuse(rows: Sequence[Sequence[Any]], fields: Sequence[str]) -> None:
    """Raise InvalidJob for the first of what ASK has answered."""
    for row in rows:
        field, _, reason = str(row[1]).partition(": ")
        raise InvalidJob(f"{fields[int(row[0]) - 1]}{field}", reason)


def id_array(answers: Sequence[Answer]) -> str:
    """The ids of *answers* as the text of an array."""
    return _literal([job_id for job_id, _ in answers])


def _literal(values: Sequence[int | str]) -> str:
    return "{" + ",".join(map(str, values)) + "}"


def answer(row: Sequence[Any] | None) -> Answer:
    """What a row of ONE or MANY says."""
    if row is None:
        raise RuntimeError("the database's enqueue function answered with no row")
    return int(row[0]), bool(row[1])


@contextmanager
def schema_errors(schema: str) -> Iterator[None]:
    """What a database without the schema answers, as SchemaMissing."""
    try:
        yield
    except (errors.InvalidSchemaName, errors.UndefinedFunction, errors.UndefinedTable) as error:
        raise SchemaMissing(schema) from error


@contextmanager
def savepoint(conn: SyncConn, cur: Cursor[tuple[Any, ...]]) -> Iterator[None]:
    """A savepoint in the caller's transaction, or, on an autocommit connection, a transaction of its own."""
    if _begins_by_itself(conn):
        cur.execute("select", prepare=False)
    with conn.transaction():
        yield


@asynccontextmanager
async def savepoint_async(conn: AsyncConn, cur: AsyncCursor[tuple[Any, ...]]) -> AsyncIterator[None]:
    """As `savepoint`."""
    if _begins_by_itself(conn):
        await cur.execute("select", prepare=False)
    async with conn.transaction():
        yield


def _begins_by_itself(conn: SyncConn | AsyncConn) -> bool:
    """Whether conn.transaction() would open, and commit, a transaction that is the caller's to end.

    One statement before it opens the caller's; then conn.transaction() is a savepoint. On an autocommit
    connection there is no transaction of the caller's, and a bulk is one of its own.
    """
    return not conn.autocommit and conn.pgconn.transaction_status == pq.TransactionStatus.IDLE
