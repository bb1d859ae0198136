"""Sending checked jobs on a connection that belongs to the caller.

    one    select ... enqueue(...)              one round trip
    many   select ... enqueue_many(jsonb)       one statement, keys included; of a batch, then its last job
    copy   reserve ids, then COPY               thousands of plain jobs, for a role that may insert rows itself;
                                                others (producers) send them by `many`

Parents (after) are asked for first, in a statement of their own: only the database knows them, and an error of its
would abort the caller's transaction.

Always true: the caller's connection is used and left as it was. Nothing is
committed, rolled back or closed; its row factory and cursor factory are not
touched. One job's statement is prepared where the connection prepares what it
sends often (psycopg's prepare_threshold); nothing else is, ever. Each form
exists twice, for sync and async connections; what they send is built once.

Elsewhere: checking (supervisor/newjob.py); who calls this (supervisor/client.py); connections of other libraries
(steps.py, supervisor/adapters); the SQL functions (functions/030_enqueue.sql).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, errors, pq
from psycopg.rows import tuple_row

from supervisor.db.statements import render
from supervisor.errors import InvalidJob, SchemaMissing
from supervisor.newjob import DEFAULT_MAX_ATTEMPTS, DEFAULT_MAX_CRASHES, DEFAULT_QUEUE, Alike, NewJob, variants
from supervisor.payload import EMPTY, JsonText

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SyncConn: TypeAlias = Connection[Any]
AsyncConn: TypeAlias = AsyncConnection[Any]
Answer: TypeAlias = "tuple[int, bool]"
T = TypeVar("T")

_ONE: Final = "select id, created from {{schema}}.enqueue(%s::text, %s::jsonb{options})"

#: What a job may choose, as arguments of enqueue. What is as usual is not sent: the server would have to read it.
_SECONDS: Final = "make_interval(secs => %s::float8)"
_OPTIONS: Final = {
    "queue": "%s::text",
    "priority": "%s::int",
    "run_at": "%s::timestamptz",
    "delay": _SECONDS,
    "max_attempts": "%s::int",
    "max_crashes": "%s::int",
    "timeout": _SECONDS,
    "unique_key": "%s::text",
    "on_conflict": "%s::text",
    "headers": "%s::jsonb",
    "ordering_key": "%s::text",
    "on_dead": "%s::text",
    "concurrency_key": "%s::text",
    "concurrency_limit": "%s::int",
    "rate_key": "%s::text",
    "rate_limit": "%s::int",
    "rate_period": _SECONDS,
    "after": "%s::bigint[]",
    "after_failed": "%s::text",
    "unique_for": _SECONDS,
    "unique_states": "%s::text[]",
}

LAST: Final = "select id, created from {schema}.enqueue_batch('[]', %s::jsonb, %s::bigint[])"

ASK: Final = "select ord, problem from {schema}.after_problem(%s::jsonb) limit 1"

MANY: Final = "select id, created from {schema}.enqueue_many(%s::jsonb) order by ord"

# The clock is read with the ids, so that run_at is the database's time here too. The ids are told one by one only
# where others were given some in between; none where the role may not insert by itself: asking is cheap, while being
# refused would abort the caller's transaction.
_RESERVE: Final = """
with may as materialized (
    select s.id,
           has_table_privilege({schema_literal} || '.job', 'insert') and has_sequence_privilege(s.id, 'usage') as insert
      from (select pg_get_serial_sequence({schema_literal} || '.job', 'id')::regclass::oid) as s (id)),
given as materialized (
    select nextval(may.id) as id
      from may cross join lateral generate_series(1, case when may.insert then %s::int else 0 end))
select min(g.id), case when max(g.id) - min(g.id) >= count(*) then array_agg(g.id order by g.id)::text end,
       (extract(epoch from statement_timestamp()) * 1000000)::int8
  from given g
"""

_COPY: Final = "copy {{schema}}.job (id, kind, payload{options}) from stdin"

#: Rows are sent in pieces of about this many.
_COPY_ROWS: Final = 500

_NO_SCHEMA: Final = (errors.InvalidSchemaName, errors.UndefinedFunction, errors.UndefinedTable)

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


def one(conn: SyncConn, schema: str, like: NewJob, payload: JsonText, on_conflict: str) -> Answer:
    """Add one job, as *like* but for its payload; (id, created)."""
    try:
        cur = Cursor(conn, row_factory=tuple_row)
        asked = question([like], on_conflict)
        if asked is not None:
            refuse(cur.execute(query_for(ASK, schema), (asked,), prepare=False).fetchall(), ("",))
        text, args = single(like, payload, on_conflict)
        cur.execute(query_for(text, schema), args)
        return answer(cur.fetchone())
    except _NO_SCHEMA as error:
        raise SchemaMissing(schema) from error


async def one_async(conn: AsyncConn, schema: str, like: NewJob, payload: JsonText, on_conflict: str) -> Answer:
    """As `one`."""
    try:
        cur = AsyncCursor(conn, row_factory=tuple_row)
        asked = question([like], on_conflict)
        if asked is not None:
            await cur.execute(query_for(ASK, schema), (asked,), prepare=False)
            refuse(await cur.fetchall(), ("",))
        text, args = single(like, payload, on_conflict)
        await cur.execute(query_for(text, schema), args)
        return answer(await cur.fetchone())
    except _NO_SCHEMA as error:
        raise SchemaMissing(schema) from error


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


def copy(conn: SyncConn, schema: str, jobs: Sequence[NewJob], judge: Callable[[Sequence[int]], T]) -> T | None:
    """Add *jobs*, plain ones, by COPY; what *judge* makes of their ids. None: this role may not, nothing was done.

    The rows are written as they are sent, and the result is made while the server stores the last of them.
    """
    with schema_errors(schema), Cursor(conn, row_factory=tuple_row) as cur:
        cur.execute(query_for(_RESERVE, schema), (len(jobs),), prepare=False)
        reserved = _Reserved.of(cur.fetchone(), len(jobs))
        if reserved is None:
            return None
        columns, pieces = reserved.rows(jobs)
        with cur.copy(query_for(_COPY.format(options=columns), schema)) as out:
            for piece in pieces:
                out.write(piece)
            result = judge(reserved.ids)
        return result


async def copy_async(
    conn: AsyncConn, schema: str, jobs: Sequence[NewJob], judge: Callable[[Sequence[int]], T]
) -> T | None:
    """As `copy`."""
    with schema_errors(schema):
        async with AsyncCursor(conn, row_factory=tuple_row) as cur:
            await cur.execute(query_for(_RESERVE, schema), (len(jobs),), prepare=False)
            reserved = _Reserved.of(await cur.fetchone(), len(jobs))
            if reserved is None:
                return None
            columns, pieces = reserved.rows(jobs)
            async with cur.copy(query_for(_COPY.format(options=columns), schema)) as out:
                for piece in pieces:
                    await out.write(piece)
                result = judge(reserved.ids)
            return result


@dataclass(frozen=True, slots=True)
class _Reserved:
    """Ids for a COPY, and the database's clock when they were given, in microseconds since 1970."""

    ids: Sequence[int]
    now_us: int

    @classmethod
    def of(cls, row: tuple[Any, ...] | None, count: int) -> _Reserved | None:
        if row is None or row[0] is None:
            return None
        first = int(row[0])
        ids = range(first, first + count) if row[1] is None else [int(one) for one in row[1].strip("{}").split(",")]
        return cls(ids, int(row[2]))

    def rows(self, jobs: Sequence[NewJob]) -> tuple[str, Iterator[str]]:
        """The columns beside id, kind and payload, and the rows in COPY's text format, in pieces.

        Columns in which all jobs are as usual are left to the table: it is quicker than the server's reading of
        them.
        """
        keys = [_row_key(job) for job in variants(jobs)]
        made = dict(zip(keys, variants(jobs), strict=True))
        options = {key: self._options(job) for key, job in made.items()}
        names = [name for name, usual in _USUAL_ROW.items() if any(one[name] != usual for one in options.values())]
        now = _at(self.now_us)
        tails = {key: "".join(f"\t{one[name] or now}" for name in names) for key, one in options.items()}
        rows: Iterable[str]
        if isinstance(jobs, Alike):
            kind, tail = _escaped(jobs.first.kind), tails[keys[0]]
            rows = (
                f"{job_id}\t{kind}\t{_escaped(payload)}{tail}\n"
                for job_id, payload in zip(self.ids, jobs.texts(), strict=True)
            )
        else:
            rows = (
                f"{job_id}\t{_escaped(job.kind)}\t{_escaped(job.payload_json)}{tails[key]}\n"
                for job_id, job, key in zip(self.ids, jobs, keys, strict=True)
            )
        return "".join(f", {name}" for name in names), _pieces(rows)

    def _options(self, job: NewJob) -> dict[str, str]:
        """What *job* has in the columns of _USUAL_ROW."""
        return {
            "queue": _escaped(job.queue),
            "priority": str(job.priority),
            "run_at": "" if job.run_at is None and not job.delay_s else _at(self._due_us(job)),
            "max_attempts": str(job.max_attempts),
            "max_crashes": str(job.max_crashes),
            "timeout": _NULL if job.timeout_s is None else f"{job.timeout_s:.6f} seconds",
            "headers": _escaped(job.headers_json),
        }

    def _due_us(self, job: NewJob) -> int:
        if job.run_at is not None:
            return max(self.now_us, (job.run_at - _EPOCH) // timedelta(microseconds=1))
        return min(self.now_us + round((job.delay_s or 0.0) * 1_000_000), _INFINITE_US)


_NULL: Final = "\\N"

#: What a plain job usually has in the columns that COPY then leaves out; no run_at is now.
_USUAL_ROW: Final[Mapping[str, str]] = {
    "queue": DEFAULT_QUEUE,
    "priority": "0",
    "run_at": "",
    "max_attempts": str(DEFAULT_MAX_ATTEMPTS),
    "max_crashes": str(DEFAULT_MAX_CRASHES),
    "timeout": _NULL,
    "headers": EMPTY,
}


def _row_key(job: NewJob) -> tuple[object, ...]:
    """Two jobs with the same have the same in all columns of _USUAL_ROW."""
    return (
        job.queue, job.priority, job.run_at, job.delay_s, job.max_attempts, job.max_crashes, job.timeout_s,
        job.headers_json,
    )  # fmt: skip


def _escaped(text: str) -> str:
    """*text*, a name or JSON, for COPY: neither has control characters as such."""
    return text.replace("\\", "\\\\")


def _pieces(rows: Iterable[str]) -> Iterator[str]:
    """*rows* by the hundreds: each piece costs the driver a call."""
    coming = iter(rows)
    while piece := "".join(islice(coming, _COPY_ROWS)):
        yield piece


def _at(microseconds: int) -> str:
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat()


def single(like: NewJob, payload: JsonText, on_conflict: str) -> tuple[str, tuple[object, ...]]:
    """The statement that adds one job, as *like* but for its payload, and its arguments: texts and numbers."""
    chosen = like.chosen(on_conflict)
    if like.headers_json != EMPTY:
        chosen["headers"] = like.headers_json
    args = [_literal(value) if isinstance(value, list) else value for value in chosen.values()]
    return _one(tuple(chosen)), (like.kind, payload, *args)


@cache
def _one(names: tuple[str, ...]) -> str:
    return _ONE.format(options="".join(f", {name} => {_OPTIONS[name]}" for name in names))


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
    """What a row of enqueue or enqueue_many says."""
    if row is None:
        raise RuntimeError("the database's enqueue function answered with no row")
    return int(row[0]), bool(row[1])


@contextmanager
def schema_errors(schema: str) -> Iterator[None]:
    """What a database without the schema answers, as SchemaMissing."""
    try:
        yield
    except _NO_SCHEMA as error:
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
