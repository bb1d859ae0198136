"""Waiting for the end of jobs, by notification: on the caller's connection, or on one for a whole process.

    wait, wait_async   LISTEN --> ask: registered and looked at in one statement --> wait for a notification --> ask
    Hub                the same for many jobs at once: what is to be asked is gathered while a question is under way

Always true: whoever waits has listened before it registered, and was registered before it looked; a job that is
just ending is asked for again within milliseconds (functions/055_results.sql says why that suffices). A question is
asked when there is news, else every 5 to 7.5 s, for notifications that were lost. The caller's connection is left as it
was: not in a transaction, listening to nothing, in autocommit or not as before.

Elsewhere: what users call (supervisor/results.py).
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, Notify, pq, sql
from psycopg.rows import tuple_row

from supervisor.db.enqueue import AsyncConn, SyncConn, schema_errors
from supervisor.db.jobs import numbers
from supervisor.db.link import answered, connect, first_line, service_conninfo
from supervisor.db.statements import channel, statement
from supervisor.errors import (
    CannotWait,
    DatabaseUnavailable,
    JobCancelled,
    JobFailed,
    JobUnknown,
    ResultGone,
    SchemaMissing,
    SupervisorError,
)

REGISTERED_S: Final = 60.0
_AGAIN_S: Final = (5.0, 7.5)
_BUSY_S: Final = (0.01, 1.0)
_PATIENCE_S: Final = 5.0
_MOST: Final = 1000
_PAUSES_S: Final = (0.05, 0.2, 0.5, 1.0, 2.0)


class Look(NamedTuple):
    """A row of await_results."""

    id: int
    status: str | None
    busy: bool
    value: str | None
    kept_until: Any
    reason: str | None
    last_error: str | None
    attempts: int | None


class Waited:
    """What one waiter knows of its job."""

    def __init__(self, job_id: int) -> None:
        self.id = job_id
        self.lived = False
        """Whether it was queued or running when it was looked at."""
        self.value: Any = None
        self.error: SupervisorError | None = None

    def learn(self, look: Look) -> bool:
        """Take what was found; whether the job has ended."""
        match look.status:
            case "queued" | "running":
                self.lived = True
                return False
            case "done":
                if look.value is not None:
                    self.value = json.loads(look.value)
                elif look.kept_until is not None:
                    self.error = ResultGone(self.id)
            case "dead":
                self.error = JobFailed(self.id, look.reason, look.last_error, look.attempts)
            case "cancelled":
                self.error = JobCancelled(self.id, look.reason, look.last_error)
            case _ if not self.lived:
                self.error = JobUnknown(self.id)
            case _:
                pass  # it lived, and is neither dead nor cancelled: done, and no history is kept
        return True

    def answer(self) -> Any:
        """Its result; or raise what stands in its place."""
        if self.error is not None:
            raise self.error
        return self.value


def new_waiter(schema: str) -> str:
    """A channel that nobody else listens on."""
    return f"{channel(schema)}:{secrets.token_hex(6)}"


def _parameters(waiter: str | None, ids: Sequence[int]) -> dict[str, object]:
    return {"waiter": waiter, "ids": numbers(ids), "for_s": REGISTERED_S}


async def _ask(conn: AsyncConn, schema: str, waiter: str, ids: Sequence[int]) -> list[Look]:
    async with AsyncCursor(conn, row_factory=tuple_row) as cur:
        await cur.execute(statement("await_results", schema), _parameters(waiter, ids), prepare=False)
        return [Look(*row) for row in await cur.fetchall()]


def _forget(schema: str, waiter: str, ids: Sequence[int]) -> tuple[bytes, dict[str, object]]:
    return statement("forget_awaited", schema), {"waiter": waiter, "ids": numbers(ids)}


def _listen(waiter: str) -> sql.Composed:
    return sql.SQL("listen {}").format(sql.Identifier(waiter))


def _unlisten(waiter: str) -> sql.Composed:
    return sql.SQL("unlisten {}").format(sql.Identifier(waiter))


class _Pace:
    """How long to wait for a notification before the next look."""

    def __init__(self, timeout: float | None) -> None:
        self._until = float("inf") if timeout is None else time.monotonic() + timeout
        self._timeout = timeout
        self._busy_s = _BUSY_S[0]

    def pause(self, look: Look) -> float:
        """Seconds; raises TimeoutError when the time is over."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"job {look.id} is still {look.status} after {self._timeout:g} s")
        if look.busy:
            pause, self._busy_s = self._busy_s, min(_BUSY_S[1], self._busy_s * 2)
        else:
            pause = random.uniform(*_AGAIN_S)
        return min(left, pause)


# ---- on the caller's connection


def check(conn: SyncConn | AsyncConn) -> None:
    """Raise CannotWait where a wait on *conn* could never end."""
    status = conn.info.transaction_status
    if conn.closed:
        raise CannotWait("the connection is closed")
    if conn.pgconn.pipeline_status != pq.PipelineStatus.OFF:
        raise CannotWait("the connection is in pipeline mode: leave it first")
    if status != pq.TransactionStatus.IDLE:
        raise CannotWait(
            "the connection is in a transaction: a job enqueued in it runs when it has been committed, so this would "
            "wait for ever; wait after the commit, or over another connection"
        )


def wait(conn: SyncConn, schema: str, job_id: int, timeout: float | None) -> Any:
    """The result of *job_id*, waited for over *conn*; see `supervisor.results.result_of`."""
    check(conn)
    waited, waiter, pace = Waited(job_id), new_waiter(schema), _Pace(timeout)
    with schema_errors(schema), _autocommit(conn), Cursor(conn, row_factory=tuple_row) as cur:
        cur.execute(_listen(waiter), prepare=False)
        try:
            while True:
                cur.execute(statement("await_results", schema), _parameters(waiter, [job_id]), prepare=False)
                look = Look(*cur.fetchall()[0])
                if waited.learn(look):
                    break
                for _ in conn.notifies(timeout=pace.pause(look), stop_after=1):
                    pass
        except BaseException:
            with suppress(psycopg.Error):
                cur.execute(*_forget(schema, waiter, [job_id]), prepare=False)
            raise
        finally:
            with suppress(psycopg.Error):
                cur.execute(_unlisten(waiter), prepare=False)
    return waited.answer()


async def wait_async(conn: AsyncConn, schema: str, job_id: int, timeout: float | None) -> Any:
    """As `wait`."""
    check(conn)
    waited, waiter, pace = Waited(job_id), new_waiter(schema), _Pace(timeout)
    with schema_errors(schema):
        async with _autocommit_async(conn), AsyncCursor(conn, row_factory=tuple_row) as cur:
            await cur.execute(_listen(waiter), prepare=False)
            try:
                while True:
                    await cur.execute(statement("await_results", schema), _parameters(waiter, [job_id]), prepare=False)
                    look = Look(*(await cur.fetchall())[0])
                    if waited.learn(look):
                        break
                    async for _ in conn.notifies(timeout=pace.pause(look), stop_after=1):
                        pass
            except BaseException:
                with suppress(psycopg.Error):
                    await cur.execute(*_forget(schema, waiter, [job_id]), prepare=False)
                raise
            finally:
                with suppress(psycopg.Error):
                    await cur.execute(_unlisten(waiter), prepare=False)
    return waited.answer()


@contextmanager
def _autocommit(conn: SyncConn) -> Iterator[None]:
    if conn.autocommit:
        yield
        return
    conn.autocommit = True
    try:
        yield
    finally:
        if not conn.closed:
            conn.autocommit = False


@asynccontextmanager
async def _autocommit_async(conn: AsyncConn) -> AsyncIterator[None]:
    if conn.autocommit:
        yield
        return
    await conn.set_autocommit(True)
    try:
        yield
    finally:
        if not conn.closed:
            await conn.set_autocommit(False)


def is_pool(source: object) -> bool | None:
    """Whether *source* is an async pool of psycopg's (True) or a sync one (False); None when it is no pool."""
    import psycopg_pool  # only those who wait over a pool have one

    if isinstance(source, psycopg_pool.AsyncConnectionPool):
        return True
    return False if isinstance(source, psycopg_pool.ConnectionPool) else None


def wait_pool(pool: Any, schema: str, job_id: int, timeout: float | None) -> Any:
    """As `wait`, over a connection of *pool*, which is borrowed meanwhile."""
    with pool.connection() as conn:
        assert isinstance(conn, Connection)
        return wait(conn, schema, job_id, timeout)


async def wait_pool_async(pool: Any, schema: str, job_id: int, timeout: float | None) -> Any:
    """As `wait_pool`."""
    async with pool.connection() as conn:
        assert isinstance(conn, AsyncConnection)
        return await wait_async(conn, schema, job_id, timeout)


# ---- on one connection for many


class Hub:
    """Waits for any number of jobs over one connection, which is had anew when it is lost.

    Made, used and closed on one event loop.
    """

    def __init__(self, conninfo: str, schema: str, *, connect_timeout_s: float) -> None:
        self._conninfo = service_conninfo(conninfo, "pg-supervisor results", connect_timeout_s)
        self._connect_timeout_s = connect_timeout_s
        self._schema = schema
        self._waiter = new_waiter(schema)
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}
        self._known: dict[asyncio.Future[None], Waited] = {}
        self._wanted: set[int] = set()  # to be asked for
        self._over: set[int] = set()  # nobody waits for these any more
        self._news = asyncio.Event()
        self._trouble: str | None = "not connected yet"
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, and serve until closed."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Give the connection up; whoever still waits gets CancelledError."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for ended in list(self._known):
            ended.cancel()

    async def wait(self, job_id: int, timeout: float | None) -> Any:
        """The result of *job_id*; see `supervisor.results.Results.of`."""
        if self._task is None or self._task.done():
            raise CannotWait("it is not open: use it in an `async with` block")
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waited = self._known[ended] = Waited(job_id)
        self._waiting.setdefault(job_id, set()).add(ended)
        self._over.discard(job_id)
        self._want(job_id)
        try:
            async with asyncio.timeout(timeout):
                await ended
        except TimeoutError:
            why = f"; the database is not to be had: {self._trouble}" if self._trouble else ""
            raise TimeoutError(f"job {job_id} had not ended after {timeout:g} s{why}") from None
        finally:
            del self._known[ended]
            others = self._waiting.get(job_id)
            if others is not None:
                others.discard(ended)
                if not others:
                    del self._waiting[job_id]
                    if not ended.done() or ended.cancelled():
                        self._over.add(job_id)
        return waited.answer()

    def _want(self, job_id: int) -> None:
        self._wanted.add(job_id)
        self._news.set()

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                async with await connect(
                    self._conninfo, statement_timeout_s=_PATIENCE_S, connect_timeout_s=self._connect_timeout_s
                ) as conn:
                    await answered(conn, conn.execute(_listen(self._waiter), prepare=False), _PATIENCE_S)
                    conn.add_notify_handler(self._notified)
                    self._trouble, failures = None, 0
                    await self._serve(conn)
            except DatabaseUnavailable as error:
                self._trouble = error.reason
            except (psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedTable):
                self._fail(SchemaMissing(self._schema))
                self._trouble = "the schema is missing"
            except (psycopg.Error, TimeoutError, OSError) as error:
                self._trouble = first_line(error)
            pause = _PAUSES_S[min(failures, len(_PAUSES_S) - 1)]
            failures += 1
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))

    async def _serve(self, conn: AsyncConnection) -> None:
        self._wanted = set(self._waiting)
        again_at = time.monotonic() + random.uniform(*_AGAIN_S)
        busy_s = _BUSY_S[0]
        while True:
            busy: set[int] = set()
            while self._wanted or self._over:
                ids = [self._wanted.pop() for _ in range(min(_MOST, len(self._wanted)))]
                ids = [job_id for job_id in ids if job_id in self._waiting]
                if ids:
                    try:
                        looks = await answered(conn, _ask(conn, self._schema, self._waiter, ids), _PATIENCE_S)
                    except BaseException:
                        self._wanted.update(ids)
                        raise
                    busy.update(look.id for look in looks if not self._learn(look) and look.busy)
                over = [job_id for job_id in self._over if job_id not in self._waiting]
                self._over.clear()
                if over:
                    text, parameters = _forget(self._schema, self._waiter, over)
                    await answered(conn, conn.execute(text, parameters, prepare=False), _PATIENCE_S)
            pause = again_at - time.monotonic()
            if busy:
                pause, busy_s = min(pause, busy_s), min(_BUSY_S[1], busy_s * 2)
            else:
                busy_s = _BUSY_S[0]
            await self._listen(conn, pause)
            self._wanted |= busy
            if time.monotonic() >= again_at:
                self._wanted |= set(self._waiting)
                again_at = time.monotonic() + random.uniform(*_AGAIN_S)

    async def _listen(self, conn: AsyncConnection, pause: float) -> None:
        """Wait for news: a notification, or something to be asked for."""
        loop = asyncio.get_running_loop()
        if not self._news.is_set() and pause > 0:
            loop.add_reader(conn.fileno(), self._news.set)
            try:
                async with asyncio.timeout(pause):
                    await self._news.wait()
            except TimeoutError:
                pass
            finally:
                loop.remove_reader(conn.fileno())
        self._news.clear()
        conn.pgconn.consume_input()
        while (notice := conn.pgconn.notifies()) is not None:
            self._heard(notice.extra.decode("ascii", "replace"))

    def _notified(self, notice: Notify) -> None:
        self._heard(notice.payload)

    def _heard(self, payload: str) -> None:
        self._wanted.update(int(word) for word in payload.split(",") if word.isdigit())

    def _learn(self, look: Look) -> bool:
        """Whether the job has ended; those who wait for it are told."""
        ended = False
        for one in list(self._waiting.get(look.id, ())):
            if not one.done() and self._known[one].learn(look):
                one.set_result(None)
                ended = True
        return ended

    def _fail(self, error: SupervisorError) -> None:
        for ended, waited in self._known.items():
            if not ended.done():
                waited.error = error
                ended.set_result(None)
