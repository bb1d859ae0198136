"""Notifications: the one LISTEN connection of a supervisor.

    connecting -> listening -> (probe fails, connection breaks) -> connecting ...

The order is LISTEN, then tell the owner to look for itself, then wait: whatever was enqueued while
nobody listened is found by that look. A self-test sends one notification through the same address, over
a connection of its own, and waits for it: a transaction-mode pooler accepts LISTEN and then delivers
nothing but what the listening connection itself sends.

Always true: `run` ends only when cancelled. A dead connection object is never used again. A half-open
connection, or one to a server that takes no writes any more, is found by a timed probe, not only by keepalives.

Elsewhere: what a notification means (parent/waker.py).
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final

import psycopg
from psycopg import AsyncConnection, sql

from supervisor.db.link import answered, check_writable, connect, first_line, service_conninfo
from supervisor.db.statements import channel
from supervisor.errors import DatabaseUnavailable

SELF_TEST_S: Final = 3.0
PROBE_EVERY_S: Final = 10.0
PROBE_TIMEOUT_S: Final = 3.0
_PAUSES_S: Final = (0.05, 0.2, 0.5, 1.0, 2.0)


class Listener:
    """Listens on a schema's channel and reconnects for ever.

    Args:
        on_notice: called with each notification's text.
        on_listening: awaited each time LISTEN is active again, before the first wait: look for work.
        on_lost: called with the reason each time the connection is lost or cannot be had.
        on_deaf: called when the self-test's notification did not arrive: a pooler is in between.
        suffix: of the channel's name, where it is not the schema's own.
    """

    def __init__(
        self,
        conninfo: str,
        schema: str,
        *,
        name: str,
        connect_timeout_s: float,
        on_notice: Callable[[str], None],
        on_listening: Callable[[], Awaitable[None]],
        on_lost: Callable[[str], None],
        on_deaf: Callable[[], None],
        suffix: str = "",
    ) -> None:
        self._conninfo = service_conninfo(conninfo, name, connect_timeout_s)
        self._connect_timeout_s = connect_timeout_s
        self._channel = channel(schema) + suffix
        self._on_notice = on_notice
        self._on_listening = on_listening
        self._on_lost = on_lost
        self._on_deaf = on_deaf
        self.listening = False

    async def run(self) -> None:
        """Listen until cancelled."""
        failures = 0
        while True:
            try:
                conn = await self._connect()
                try:
                    await self._listen(conn)
                    failures = 0
                finally:
                    if self.listening:
                        failures = 0
                    self.listening = False
                    with contextlib.suppress(psycopg.Error, OSError):
                        await conn.close()
            except DatabaseUnavailable as error:
                self._on_lost(error.reason)
            except (psycopg.Error, TimeoutError, OSError) as error:
                self._on_lost(first_line(error) or "no answer to the probe")
            pause = _PAUSES_S[min(failures, len(_PAUSES_S) - 1)]
            failures += 1
            await asyncio.sleep(pause)

    async def _connect(self) -> AsyncConnection:
        return await connect(
            self._conninfo, statement_timeout_s=PROBE_TIMEOUT_S, connect_timeout_s=self._connect_timeout_s
        )

    async def _listen(self, conn: AsyncConnection) -> None:
        nonce = f"self-test {secrets.token_hex(8)}"
        listen = sql.SQL("listen {}").format(sql.Identifier(self._channel))
        await answered(conn, conn.execute(listen), PROBE_TIMEOUT_S)
        async with await self._connect() as other:
            await answered(other, other.execute("select pg_notify(%s, %s)", (self._channel, nonce)), PROBE_TIMEOUT_S)
        if not await self._hear(conn, nonce):
            self._on_deaf()
            # Stay deaf until the connection is replaced: nothing will come, polling does the work.
            await asyncio.sleep(60)
            return
        self.listening = True
        conn.add_notify_handler(lambda notice: self._deliver(notice.payload))  # those that a probe's answer brings
        await self._on_listening()
        while True:
            await self._deliver_for(PROBE_EVERY_S, conn)
            # Answers alone are not enough: on a server that lost its role nobody sends notifications any more.
            await answered(conn, check_writable(conn), PROBE_TIMEOUT_S)

    async def _deliver_for(self, seconds: float, conn: AsyncConnection) -> None:
        """Deliver what comes, in the callback that finds it: a job waits for it."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        pgconn, descriptor = conn.pgconn, conn.fileno()

        def over() -> None:
            if not ended.done():
                ended.set_result(None)

        def readable() -> None:
            try:
                pgconn.consume_input()
                while (notice := pgconn.notifies()) is not None:
                    self._deliver(notice.extra.decode())
            except Exception as error:
                loop.remove_reader(descriptor)
                if not ended.done():
                    ended.set_exception(error)

        timer = loop.call_later(seconds, over)
        loop.add_reader(descriptor, readable)
        readable()  # what came in one packet with the last probe's answer
        try:
            await ended
        finally:
            timer.cancel()
            loop.remove_reader(descriptor)

    async def _hear(self, conn: AsyncConnection, nonce: str) -> bool:
        heard, until = False, time.monotonic() + SELF_TEST_S
        while not heard and time.monotonic() < until:
            # Never left half-way: what came in the same packet would be lost.
            async for notice in conn.notifies(timeout=max(0.0, until - time.monotonic()), stop_after=1):
                heard = heard or notice.payload == nonce
                self._deliver(notice.payload)
        return heard

    def _deliver(self, payload: str) -> None:
        if not payload.startswith("self-test "):
            self._on_notice(payload)
