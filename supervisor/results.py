"""Waiting for what a job returns: `await job.result(conn, timeout=10)`.

    @handler("sum", result_for=3600)
    async def add(a: int, b: int) -> int: ...

    job = await add.enqueue(conn, a=1, b=2)              # committed: autocommit, or after the transaction
    assert await job.result(conn, timeout=10) == 3

    async with Results(url) as results:                  # many waiters of a process, one connection
        await results.of(job, timeout=10)

By notification: whoever waits costs the database nothing meanwhile but a look every 5 s or more, for a
notification that was lost. On a connection to PgBouncer in transaction mode no notification arrives and only those
looks are left: give the server's direct address.

Always true: the answer is the job's own end. A wait that is given up leaves the job as it is.

Elsewhere: storing results (worker/results.py); listening (db/results.py); the page for users (docs/results.md).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, cast, overload

from supervisor.db import results as waits
from supervisor.db.enqueue import is_async
from supervisor.db.statements import queue_schema
from supervisor.errors import CannotWait
from supervisor.keys import Enqueued, install_waiter

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

    from supervisor.db.enqueue import AsyncConn, SyncConn

    AsyncSource: TypeAlias = "AsyncConn | AsyncConnectionPool[Any] | str | Results"
    SyncSource: TypeAlias = "SyncConn | ConnectionPool[Any]"

__all__ = ["Results", "result_of"]

CONNECT_TIMEOUT_S: Final = 5.0


@overload
def result_of(
    source: SyncSource, job: Enqueued | int, *, timeout: float | None = None, schema: str | None = None
) -> Any: ...
@overload
def result_of(
    source: AsyncSource, job: Enqueued | int, *, timeout: float | None = None, schema: str | None = None
) -> Coroutine[Any, Any, Any]: ...
def result_of(
    source: SyncSource | AsyncSource, job: Enqueued | int, *, timeout: float | None = None, schema: str | None = None
) -> Any:
    """What *job* returned, as JSON gives it back; waits until it has ended.

    Args:
        source: A psycopg connection or pool, sync or async (await the answer); it is used by nobody else meanwhile,
            and not in a transaction. Or, awaited, an address or a `Results`.
        job: The answer of an enqueue, or the job's id.
        timeout: Seconds to wait; None waits for ever.
        schema: Where the queue lives; SUPERVISOR_SCHEMA or "supervisor" when not given.

    Returns:
        What the handler returned; None where it keeps no results (no `result_for`).

    Raises:
        JobFailed: it is dead, with the reason and its last error.
        JobCancelled: it was cancelled.
        JobUnknown: there is no such job: not committed, or nothing is kept of it. ResultGone, one of these: it is done,
            and its result is past its time.
        TimeoutError: it had not ended in time; it goes on.
        CannotWait: *source* cannot be used for it. In a transaction the job may not be committed.
        SchemaMissing: the database is not migrated.
    """
    job_id = _id_of(job)
    if isinstance(source, Results):
        return source.of(job_id, timeout=timeout)
    where = queue_schema(schema)
    seconds = _seconds(timeout)
    if isinstance(source, str):
        return _over_address(source, where, job_id, seconds)
    awaited = is_async(source)
    if awaited is not None:
        if awaited:
            return waits.wait_async(cast("AsyncConn", source), where, job_id, seconds)
        return waits.wait(cast("SyncConn", source), where, job_id, seconds)
    awaited = waits.is_pool(source)
    if awaited is None:
        raise CannotWait(
            f"a {type(source).__name__} cannot be listened on: give a psycopg connection or pool, an address or Results"
        )
    return (waits.wait_pool_async if awaited else waits.wait_pool)(source, where, job_id, seconds)


async def _over_address(address: str, schema: str, job_id: int, timeout: float | None) -> Any:
    hub = waits.Hub(address, schema, connect_timeout_s=CONNECT_TIMEOUT_S)
    hub.start()
    try:
        return await hub.wait(job_id, timeout)
    finally:
        await hub.close()


class Results:
    """One listening connection for all waits of a process.

    In asyncio `async with Results(address) as results`, and `await results.of(job)`, from any number of tasks of
    that event loop. In a program with threads `with Results(address) as results`, and `results.wait(job)`, from any
    of them. A connection that is lost is had anew, and no wait is lost with it. Made after a fork, not before.

    Args:
        address: Of the server itself, not of a pooler in transaction mode.
        schema: Where the queue lives; SUPERVISOR_SCHEMA or "supervisor" when not given.
        connect_timeout_s: How long one try to connect may take.
    """

    def __init__(
        self, address: str, *, schema: str | None = None, connect_timeout_s: float = CONNECT_TIMEOUT_S
    ) -> None:
        self._address = address
        self._schema = queue_schema(schema)
        self._connect_timeout_s = connect_timeout_s
        self._hub: waits.Hub | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def of(self, job: Enqueued | int, *, timeout: float | None = None) -> Any:
        """As `result_of`."""
        job_id, seconds = _id_of(job), _seconds(timeout)
        if self._hub is None or self._loop is not asyncio.get_running_loop():
            raise CannotWait("Results is not open on this event loop: use it in an `async with` block")
        return await self._hub.wait(job_id, seconds)

    def wait(self, job: Enqueued | int, *, timeout: float | None = None) -> Any:
        """As `result_of`, for threads: blocks the one that calls."""
        job_id, seconds = _id_of(job), _seconds(timeout)
        if self._hub is None or self._loop is None or self._thread is None:
            raise CannotWait("Results is not open for threads: use it in a `with` block")
        if threading.current_thread() is self._thread:
            raise CannotWait("this is the thread that listens")
        future = asyncio.run_coroutine_threadsafe(self._hub.wait(job_id, seconds), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    def _begin(self) -> None:
        if self._hub is not None:
            raise CannotWait("Results is open already")
        self._loop = asyncio.get_running_loop()
        self._hub = waits.Hub(self._address, self._schema, connect_timeout_s=self._connect_timeout_s)
        self._hub.start()

    async def _end(self) -> None:
        hub, self._hub = self._hub, None
        if hub is not None:
            await hub.close()

    def __enter__(self) -> Self:
        if self._hub is not None:
            raise CannotWait("Results is open already")
        loop = asyncio.new_event_loop()

        def serve() -> None:
            asyncio.set_event_loop(loop)
            loop.run_forever()
            loop.close()

        self._thread = threading.Thread(target=serve, name="supervisor-results", daemon=True)
        self._thread.start()

        async def begin() -> None:
            self._begin()

        asyncio.run_coroutine_threadsafe(begin(), loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        self._thread = self._loop = None


def _id_of(job: object) -> int:
    job_id = job.id if isinstance(job, Enqueued) else job
    if isinstance(job_id, bool) or not isinstance(job_id, int) or not 0 < job_id < 2**63:
        raise CannotWait("the job must be the answer of an enqueue, or an id")
    return job_id


def _seconds(timeout: object) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < float("inf"):
        raise CannotWait("timeout must be 0 or more seconds, or None")
    return float(timeout)


install_waiter(result_of)
