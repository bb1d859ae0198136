"""Connections the service keeps for itself.

    connect   opens one and makes it ours: isolation, time limits, keepalives
    Link      one connection for one purpose, opened when needed, replaced when broken

A link has one user at a time; callers queue on its lock. Every call has a deadline of its own: a
connection that does not answer by then is closed, never handed on in an unknown state. Closed by hanging
up, not by cancelling: the driver would first ask the server to cancel, and a server that is frozen or out
of reach does not answer that either.

Always true: sessions run at READ COMMITTED whatever the role's default is (behind a transaction pooler the
role's default must be that: a statement there says so if it is not); a server that takes no writes any more,
be it a standby or told to refuse them, is left, never overruled; a connection that failed
with a connection error is not used again; what is raised says whether the server may have done the
work: DatabaseUnavailable.unsure is true when the statement had been sent.

Elsewhere: handlers' connections (pools.py); the statements (jobs.py, tend.py); waiting for notifications (listener.py).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row

from supervisor.db.house import HouseConnection, hang_up
from supervisor.errors import DatabaseUnavailable, SessionClosed

T = TypeVar("T")

DatabaseError = psycopg.Error
"""What a server answers when it refuses a statement; the name for layers that do not import the driver."""

# Undone by the server as a whole and right to send again: serialization failure, deadlock, lock not
# available, and a statement cancelled by a time limit.
RETRYABLE: Final = frozenset({"40001", "40P01", "55P03", "57014"})
# The server is up but cannot take writes (a standby, or read-only after a failover): look for another.
_WRONG_SERVER: Final = frozenset({"25006", "57P03", "57P01", "57P02", "53300"})
IDLE_MS: Final = 10_000
# Returns no row, and sets nothing, where the session is not ours: see set_up.
_SETUP: Final = (
    "select set_config('default_transaction_isolation', 'read committed', false), "
    "set_config('idle_in_transaction_session_timeout', '0', false), "
    # The server is to notice too when this side has vanished: what it holds locked nobody else can recover.
    "set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false), "
    "set_config('tcp_keepalives_count', '3', false), "
    "set_config('statement_timeout', %s, false), set_config('lock_timeout', '0', false) "
    "where pg_backend_pid() = %s"
)


def service_conninfo(conninfo: str, application_name: str, connect_timeout_s: float) -> str:
    """*conninfo* with what a long-lived connection needs, where the user has not said otherwise.

    Keepalives and the TCP user timeout find a peer that vanished without a word within half a minute.
    """
    wanted = {
        "application_name": application_name,
        "connect_timeout": str(max(1, round(connect_timeout_s))),
        "keepalives": "1",
        "keepalives_idle": "10",
        "keepalives_interval": "5",
        "keepalives_count": "3",
        "tcp_user_timeout": "20000",
        "target_session_attrs": "read-write",
    }
    given = conninfo_to_dict(conninfo)
    # In a SQL_ASCII database the driver would else return bytes for text.
    given.pop("client_encoding", None)
    wanted["client_encoding"] = "UTF8"
    return make_conninfo(conninfo, **{key: value for key, value in wanted.items() if key not in given})


async def answered(conn: AsyncConnection, work: Awaitable[T], patience_s: float) -> T:
    """Await *work*, which uses *conn*, for at most *patience_s*; on time-out or cancellation *conn* is hung up.

    Raises:
        TimeoutError: there was no answer in time.
    """
    try:
        async with asyncio.timeout(patience_s):
            return await work
    except (TimeoutError, asyncio.CancelledError):
        hang_up(conn)
        raise


async def connect(conninfo: str, *, statement_timeout_s: float, connect_timeout_s: float) -> HouseConnection:
    """An autocommit connection set up for the service. Raises DatabaseUnavailable."""
    try:
        async with asyncio.timeout(connect_timeout_s + 1):
            conn = await HouseConnection.connect(conninfo, autocommit=True)
            try:
                await answered(conn, set_up(conn, f"{int(statement_timeout_s * 1000)}ms"), connect_timeout_s)
            except BaseException:
                await conn.close()
                raise
            return conn
    except TimeoutError as error:
        raise DatabaseUnavailable(f"no answer within {connect_timeout_s:g} s of connecting", unsure=False) from error
    except psycopg.Error as error:
        raise DatabaseUnavailable(first_line(error), unsure=False) from error


async def set_up(conn: AsyncConnection, statement_timeout: str) -> None:
    """Settings for the session, if it is ours.

    A pooler gives its clients process ids of its own making. Behind it each transaction may meet another
    session: what is set, or prepared, there would be found by others and missed by us.
    """
    done = await conn.execute(_SETUP, (statement_timeout, conn.info.backend_pid), prepare=False)
    if await done.fetchone() is None:
        conn.prepare_threshold = None


def set_up_sync(conn: Connection, statement_timeout: str) -> None:
    """As `set_up`."""
    if conn.execute(_SETUP, (statement_timeout, conn.info.backend_pid), prepare=False).fetchone() is None:
        conn.prepare_threshold = None


_REFUSES: Final = "select current_setting('transaction_read_only')::bool"


async def check_writable(conn: AsyncConnection) -> None:
    """See that *conn* answers and that its server still takes writes: after a failover it may only be healthy.

    Raises:
        DatabaseUnavailable: it does not; look for another server.
        psycopg.Error: it does not answer.
    """
    row = await (await conn.cursor(row_factory=tuple_row).execute(_REFUSES, prepare=False)).fetchone()
    _judge_writable(row)


def check_writable_sync(conn: Connection) -> None:
    """As `check_writable`."""
    _judge_writable(conn.cursor(row_factory=tuple_row).execute(_REFUSES, prepare=False).fetchone())


def _judge_writable(row: tuple[Any, ...] | None) -> None:
    if row is None or row[0]:
        raise DatabaseUnavailable("the server takes no writes any more", unsure=False)


class Link:
    """One connection, kept while it works.

    Args:
        statement_timeout_s: How long the server may work on one statement; the link waits a little
            longer (as long again, at most 2 s) for the answer before it gives the connection up.
    """

    def __init__(self, conninfo: str, *, name: str, statement_timeout_s: float, connect_timeout_s: float) -> None:
        self._conninfo = service_conninfo(conninfo, name, connect_timeout_s)
        self._statement_timeout_s = statement_timeout_s
        self._patience_s = statement_timeout_s + min(2.0, statement_timeout_s)
        self._connect_timeout_s = connect_timeout_s
        self._conn: HouseConnection | None = None
        self._lock = asyncio.Lock()
        self.callers = 0
        """Calls that use it or wait for it."""
        self.used_at = time.monotonic()
        """When the last call ended."""
        self.down_since: float | None = None
        """When the link last began to fail (monotonic seconds); None while it works."""

    @property
    def open(self) -> bool:
        """Whether there is a connection now, as far as is known."""
        return self._conn is not None and not self._conn.closed

    @property
    def busy(self) -> bool:
        """Whether a call uses it."""
        return self.callers > 0

    async def call(self, work: Callable[[HouseConnection], Awaitable[T]], *, patience_s: float = float("inf")) -> T:
        """Run *work* with the connection, once; waiting for the answer for the link's patience, or *patience_s*.

        Raises:
            DatabaseUnavailable: no connection could be had (unsure is false), or it broke or stayed
                silent after the statement was sent (unsure is true: it may have been committed).
            SessionClosed: the statement found its session closed; nothing was done.
            psycopg.Error: the server refused the statement and undid it; the connection is kept.
        """
        self.callers += 1
        try:
            async with self._lock:
                return await self._call(work, min(patience_s, self._patience_s))
        finally:
            self.callers -= 1
            self.used_at = time.monotonic()

    async def _call(self, work: Callable[[HouseConnection], Awaitable[T]], patience_s: float) -> T:
        conn = self._conn
        if conn is None or conn.closed:
            try:
                conn = self._conn = await connect(
                    self._conninfo,
                    statement_timeout_s=self._statement_timeout_s,
                    connect_timeout_s=self._connect_timeout_s,
                )
            except DatabaseUnavailable:
                self.down_since = self.down_since or time.monotonic()
                raise
        try:
            result = await answered(conn, work(conn), patience_s)
        except TimeoutError as error:
            await self._drop()
            raise DatabaseUnavailable(f"no answer within {patience_s:g} s", unsure=True) from error
        except psycopg.Error as error:
            raise await self._judge(conn, error) from error
        except BaseException:
            # Cancelled or failed half-way: whatever the connection is doing, nobody waits for it.
            await self._drop()
            raise
        self.down_since = None
        return result

    async def _judge(self, conn: AsyncConnection, error: psycopg.Error) -> Exception:
        if error.sqlstate == "QS001":
            return SessionClosed(first_line(error))
        if error.sqlstate in _WRONG_SERVER or conn.closed or conn.broken or error.sqlstate is None:
            await self._drop()
            return DatabaseUnavailable(first_line(error), unsure=error.sqlstate != "25006")
        if conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            await self._drop()
        return error

    async def _drop(self) -> None:
        conn, self._conn = self._conn, None
        self.down_since = self.down_since or time.monotonic()
        if conn is not None:
            await conn.close()

    async def close(self) -> None:
        """Close the connection, if there is one."""
        async with self._lock:
            conn, self._conn = self._conn, None
            if conn is not None:
                await conn.close()


async def in_transaction(conn: HouseConnection, work: Callable[[HouseConnection], Awaitable[T]]) -> T:
    """Run *work* in one transaction on *conn*, for Link.call.

    Between two statements the server waits IDLE_MS at most: a process that is stopped or cut off in the
    middle must not keep sessions and jobs locked, which the reaper steps over and nobody else can free.
    """
    async with conn.transaction():
        await conn.execute("select set_config('idle_in_transaction_session_timeout', %s, true)", (str(IDLE_MS),))
        return await work(conn)


def first_line(error: BaseException) -> str:
    """The first line of an error's text: the rest is detail that may quote data."""
    return (str(error).splitlines() or [type(error).__name__])[0]
