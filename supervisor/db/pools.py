"""The connections lent to handlers for their own transactions, so that these can never hold up an ack.

    async handler --connection()--> async pool    a handler in a thread --sync_pool()--> pool of threads

Each kind of handler has a pool of its own: none is open until one asks.

Always true: a connection that is lent is at READ COMMITTED and takes writes; one that came from a job that was
cancelled comes back. What helps a pool to work outlives the job that opened it, and carries none of its context
variables.

Elsewhere: opening and setting up a connection (link.py); what a handler does with one (worker/run.py).
"""

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from psycopg import AsyncConnection, Connection, IsolationLevel
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from supervisor.db.link import check_writable, check_writable_sync, service_conninfo, set_up, set_up_sync

T = TypeVar("T")

_MAX_IDLE_S: Final = 60.0


class HandlerPools:
    """The connections lent to handlers for their own transactions; none is open until one asks.

    Each pool holds at most *size* connections. A handler that asks while all are lent waits up to
    *timeout_s* seconds, then gets psycopg_pool.PoolTimeout.
    """

    def __init__(self, conninfo: str, *, name: str, size: int, timeout_s: float, connect_timeout_s: float) -> None:
        self._conninfo = service_conninfo(conninfo, name, connect_timeout_s)
        self._options: dict[str, Any] = {
            "min_size": 0,
            "max_size": size,
            "timeout": timeout_s,
            "max_idle": _MAX_IDLE_S,
            "name": "handlers",
        }
        self._async: AsyncConnectionPool | None = None
        self._sync: ConnectionPool | None = None
        self._lock = threading.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection]:
        """A connection for an async handler; returned to the pool in every case."""
        if self._async is None:
            self._async = AsyncConnectionPool(
                self._conninfo, open=False, check=_check_async, configure=_configure_async, **self._options
            )
            # Its helpers outlive this job, and must not carry its context variables.
            await asyncio.get_running_loop().create_task(self._async.open(), context=contextvars.Context())
        pool = self._async
        # The pool never meets a cancellation: interrupted while it hands a connection over or takes one
        # back, it would lose the connection for good, or (Python 3.11) the cancellation.
        taking = self._beside(pool.getconn())
        try:
            conn = await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(lambda taken: self._give_back(pool, taken))
            raise
        try:
            async with conn:
                yield conn
        finally:
            await asyncio.shield(self._beside(pool.putconn(conn)))

    def _beside(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _give_back(self, pool: AsyncConnectionPool, taken: asyncio.Task[AsyncConnection]) -> None:
        if not taken.cancelled() and taken.exception() is None:
            self._beside(pool.putconn(taken.result()))

    def sync_pool(self) -> ConnectionPool:
        """The pool for handlers that run in threads."""
        with self._lock:
            if self._sync is None:
                self._sync = contextvars.Context().run(self._open_sync)
            return self._sync

    def _open_sync(self) -> ConnectionPool:
        return ConnectionPool(self._conninfo, open=True, check=_check_sync, configure=_configure_sync, **self._options)

    def stats(self) -> dict[str, int]:
        """Connections by state over both pools: open, idle, waiting (callers without one)."""
        totals = {"open": 0, "idle": 0, "waiting": 0}
        for pool in (self._async, self._sync):
            if pool is not None:
                stats = pool.get_stats()
                totals["open"] += stats.get("pool_size", 0)
                totals["idle"] += stats.get("pool_available", 0)
                totals["waiting"] += stats.get("requests_waiting", 0)
        return totals

    async def close(self) -> None:
        """Close both pools."""
        if self._async is not None:
            await self._async.close(timeout=1.0)
        if self._sync is not None:
            await asyncio.to_thread(self._sync.close, 1.0)


async def _configure_async(conn: AsyncConnection) -> None:
    await conn.set_autocommit(True)
    await set_up(conn, "0")
    await conn.set_autocommit(False)
    await conn.set_isolation_level(IsolationLevel.READ_COMMITTED)


def _configure_sync(conn: Connection) -> None:
    conn.autocommit = True
    set_up_sync(conn, "0")
    conn.autocommit = False
    conn.isolation_level = IsolationLevel.READ_COMMITTED


async def _check_async(conn: AsyncConnection) -> None:
    """Before a pooled connection is lent: closed, it is replaced by the pool; a healthy one would be kept."""
    try:
        await conn.set_autocommit(True)
        await check_writable(conn)
        await conn.set_autocommit(False)
    except BaseException:
        await conn.close()
        raise


def _check_sync(conn: Connection) -> None:
    try:
        conn.autocommit = True
        check_writable_sync(conn)
        conn.autocommit = False
    except BaseException:
        conn.close()
        raise
