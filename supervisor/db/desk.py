"""The dashboard's connections: a few, shared by all who look, each held for one question.

    page --ask(question)--> waits for a turn --> a thread sends it over a connection --> answer
                              |                        |
                              busy: refused            no answer in time: hung up, closed

Questions are the plain functions of the other rooms (browse.py, overview.py, operate.py), so the command line
and the dashboard ask in one way. Each runs in one transaction with a time limit of its own; one that only
looks runs in a read-only transaction, so that nothing a page does can change anything.

Always true: at most *size* connections, whatever is asked; a connection that failed or stayed silent is not
used again; what is raised is a SupervisorError of one line. Nobody waits longer than two time limits and a
connect.

Elsewhere: what the service itself holds (link.py).
"""

import asyncio
import select
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection

from supervisor.db.house import hang_up
from supervisor.db.link import connect, service_conninfo
from supervisor.db.operate import refusals
from supervisor.db.overview import PLANS
from supervisor.errors import DatabaseUnavailable

Conn: TypeAlias = Connection
"""What a question is called with, for layers that do not import the driver."""

P = ParamSpec("P")
T = TypeVar("T")

_IDLE_S: Final = 30.0
_GRACE_S: Final = 1.0
_IDLE: Final = psycopg.pq.TransactionStatus.IDLE
_BEGIN: Final = (
    PLANS + ", set_config('statement_timeout', %s, true), set_config('lock_timeout', %s, true), "
    "set_config('idle_in_transaction_session_timeout', '10s', true), set_config('transaction_read_only', %s, true)"
)


class Desk:
    """Answers questions to one schema of one database.

    Args:
        size: The most connections.
        statement_timeout_s: How long the server may work on one statement of a page.
        read_only: Refuse orders too.
    """

    def __init__(
        self,
        conninfo: str,
        schema: str,
        *,
        size: int = 4,
        statement_timeout_s: float,
        connect_timeout_s: float,
        read_only: bool = False,
    ) -> None:
        self.schema = schema
        self._conninfo = service_conninfo(conninfo, "pg-supervisor dashboard", connect_timeout_s)
        self._size = size
        self._statement_timeout_s = statement_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._read_only = read_only
        self._idle: list[tuple[float, Connection]] = []
        self._busy: set[Connection] = set()
        self._turn = asyncio.Semaphore(size)
        self._threads = ThreadPoolExecutor(max_workers=size, thread_name_prefix="desk")
        self._tidying: asyncio.TimerHandle | None = None
        self._closed = False

    async def look(
        self, question: Callable[Concatenate[Connection, str, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The answer to *question*, called with a connection and the schema; it can change nothing.

        Raises:
            DatabaseUnavailable: There was no connection, no turn or no answer in time.
            SchemaMissing, StatementRefused: As they say.
        """
        return await self._ask(True, lambda conn: question(conn, self.schema, *args, **kwargs))

    async def order(self, action: Callable[Concatenate[Connection, str, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for an *action* that changes something; committed when this returns."""
        return await self._ask(self._read_only, lambda conn: action(conn, self.schema, *args, **kwargs))

    async def examine(self, work: Callable[[AsyncConnection], Coroutine[Any, Any, T]]) -> T:
        """The answer of *work*, which is given an asynchronous connection of its own.

        Raises:
            As `look`.
        """
        with refusals(self.schema):
            async with await connect(
                self._conninfo,
                statement_timeout_s=self._statement_timeout_s,
                connect_timeout_s=self._connect_timeout_s,
            ) as conn:
                return await work(conn)

    async def _ask(self, read_only: bool, question: Callable[[Connection], T]) -> T:
        if self._closed:
            raise DatabaseUnavailable("the dashboard is stopping")
        try:
            async with asyncio.timeout(self._statement_timeout_s + _GRACE_S):
                await self._turn.acquire()
        except TimeoutError:
            raise DatabaseUnavailable(f"{self._size} other questions were under way and none had an answer") from None
        held: list[Connection] = []
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._answer, read_only, question, held)
        work.add_done_callback(self._answered)  # the turn ends with the thread's work, whoever still waits for it
        patience_s = 2 * self._statement_timeout_s + self._connect_timeout_s + _GRACE_S
        if not (await asyncio.wait({work}, timeout=patience_s))[0]:
            for conn in held:
                hang_up(conn)
            raise DatabaseUnavailable(f"no answer within {patience_s:g} s", unsure=not read_only)
        return work.result()

    def _answered(self, work: asyncio.Future[Any]) -> None:
        self._turn.release()
        if not work.cancelled():
            work.exception()  # told to whoever asked, if they are still there
        if self._idle and self._tidying is None:
            self._tidying = asyncio.get_running_loop().call_later(_IDLE_S, self._tidy)

    # ---- in a thread

    def _answer(self, read_only: bool, question: Callable[[Connection], T], held: list[Connection]) -> T:
        with refusals(self.schema):
            conn = self._take()
            held.append(conn)
            self._busy.add(conn)
            try:
                with conn.transaction():
                    limit = f"{int(self._statement_timeout_s * 1000)}ms"
                    conn.execute(_BEGIN, (limit, limit, "on" if read_only else "off"))
                    return question(conn)
            finally:
                self._busy.discard(conn)
                if self._closed or conn.closed or conn.info.transaction_status != _IDLE:
                    conn.close()
                else:
                    self._idle.append((time.monotonic(), conn))

    def _take(self) -> Connection:
        while self._idle:
            _, conn = self._idle.pop()
            if not _stirs(conn):
                return conn
            conn.close()
        conn = psycopg.connect(self._conninfo, autocommit=True)
        # Behind a pooler each transaction may meet another session: nothing prepared would be found there again.
        row = conn.execute("select pg_backend_pid()", prepare=False).fetchone()
        if row is None or row[0] != conn.info.backend_pid:
            conn.prepare_threshold = None
        return conn

    # ---- keeping few

    def _tidy(self) -> None:
        """Close connections that nobody has used for a while."""
        self._tidying = None
        now = time.monotonic()
        for one in self._idle[:]:
            if now - one[0] >= _IDLE_S:
                with suppress(ValueError):  # somebody has just taken it
                    self._idle.remove(one)
                    one[1].close()
        if self._idle:
            self._tidying = asyncio.get_running_loop().call_later(_IDLE_S, self._tidy)

    async def close(self) -> None:
        """Close every connection; a question that is under way gets no answer."""
        self._closed = True
        if self._tidying is not None:
            self._tidying.cancel()
        idle, self._idle = self._idle, []
        for _, conn in idle:
            conn.close()
        for conn in tuple(self._busy):
            hang_up(conn)
        self._threads.shutdown(wait=False)


def _stirs(conn: Connection) -> bool:
    """Whether an idle connection has something to say: that the server ended it, as a rule."""
    try:
        return bool(select.select([conn.fileno()], [], [], 0)[0])
    except (OSError, ValueError, psycopg.Error):
        return True
