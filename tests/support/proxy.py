"""A TCP proxy between the service and PostgreSQL that fails as networks fail.

    service --> Proxy (a thread with its own loop) --> server

    freeze, thaw     nothing passes in either direction, nobody is told: a blackhole, or a stopped machine
    strand           the same, for good, for the connections there are now; new ones work: a half-open connection
    cut, refuse      connections are reset; new ones are refused, or every nth is
    delay_s          each chunk waits so long
    lose             a statement reaches the server and is carried out there; its answer does not come back

The client's side is read as protocol frames, so that `lose` knows which statement is being sent, prepared
or not: its SQL is remembered by name.

Always true: an answer is lost only after the server has said ReadyForQuery: what autocommits is committed.
Frames of TLS cannot be read: `conninfo` asks for none.
"""

import asyncio
import contextlib
import itertools
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_SSL_REQUEST: Final = 80877103
_GSS_REQUEST: Final = 80877104
_CHUNK: Final = 65536

LoseRule = Callable[[str], str | None]
"""The SQL of a statement -> what to count it as if its answer is to be lost, else None."""


class Proxy:
    """One proxy in front of one address; its loop runs in a thread from `start` to `close`."""

    def __init__(self, conninfo: str) -> None:
        given = conninfo_to_dict(conninfo)
        self._target = (str(given["host"]), int(given["port"] or 5432))
        self._given = conninfo
        self.port = 0
        self.delay_s = 0.0
        self.refuse: Callable[[int], bool] = lambda _: False
        """Asked with the number of each new connection."""
        self.lost: Counter[str] = Counter()
        self._lose: LoseRule | None = None
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._numbers = itertools.count(1)
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._began = threading.Event()

    @property
    def conninfo(self) -> str:
        """The address through the proxy."""
        return make_conninfo(self._given, host="127.0.0.1", port=self.port, sslmode="disable", gssencmode="disable")

    def start(self) -> Self:
        self._thread.start()
        assert self._began.wait(10), "the proxy did not start"
        return self

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- faults -------------------------------------------------------------------------

    def freeze(self) -> None:
        """Let nothing pass until `thaw`. Connections are accepted and kept."""
        self._call(self._open.clear)

    def thaw(self) -> None:
        self._call(self._open.set)

    def strand(self, application_name: str = "") -> int:
        """Let nothing pass any more on the connections there are (of this application); how many."""
        return int(self._call(lambda: self._each(application_name, _Link.strand)))

    def end_stranded(self) -> int:
        """Reset the connections that were stranded, as TCP does when nothing is acknowledged for long; how many."""

        def end() -> int:
            stranded = [link for link in self._links if link.stranded]
            for link in stranded:
                link.reset()
            return len(stranded)

        return int(self._call(end))

    def cut(self, application_name: str = "") -> int:
        """Reset the connections there are (of this application); how many."""
        return int(self._call(lambda: self._each(application_name, _Link.reset)))

    def lose(self, rule: LoseRule | None) -> None:
        """Lose the answers of statements as *rule* says; None: of none."""
        self._call(lambda: setattr(self, "_lose", rule))

    def lose_next(self, function: str) -> None:
        """Lose one answer: that of the next statement that calls this function of the queue's schema."""
        before = self.lost[function]

        def rule(sql: str) -> str | None:
            return function if function_called(sql) == function and self.lost[function] == before else None

        self.lose(rule)

    def connections(self) -> list[str]:
        """The application names of the connections there are."""
        return list(self._call(lambda: [link.application for link in self._links]))

    # -- inside -------------------------------------------------------------------------

    def _each(self, application_name: str, act: Callable[["_Link"], None]) -> int:
        chosen = [link for link in self._links if link.application.startswith(application_name)]
        for link in chosen:
            act(link)
        return len(chosen)

    def _call(self, work: Callable[[], Any]) -> Any:
        """Do *work* in the proxy's loop and return its answer."""

        async def run() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _serve(self) -> None:
        self._open.set()
        server = self._server = await asyncio.start_server(self._client, "127.0.0.1", 0, backlog=512)
        self.port = server.sockets[0].getsockname()[1]
        self._began.set()

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        self.refuse = lambda _: True
        self._open.set()
        while self._links:
            for link in list(self._links):
                link.reset()
            await asyncio.sleep(0.005)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse(next(self._numbers)):
            writer.transport.abort()
            return
        link = _Link(self, reader, writer)
        self._links.add(link)
        try:
            await link.serve(*self._target)
        finally:
            self._links.discard(link)

    def judge(self, sql: str) -> bool:
        """Whether the answer to *sql* is to be lost; counts it."""
        rule = self._lose
        what = rule(sql) if rule is not None else None
        if what is None:
            return False
        with self._lock:
            self.lost[what] += 1
        return True


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = (reader, writer)
        self._server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._gate = asyncio.Event()
        self._gate.set()
        self._losing = False
        self._frames = _Frames()

    @property
    def application(self) -> str:
        return self._frames.application

    def strand(self) -> None:
        self._gate.clear()

    @property
    def stranded(self) -> bool:
        return not self._gate.is_set()

    def reset(self) -> None:
        for side in (self._client, self._server):
            if side is not None:
                side[1].transport.abort()
        self._gate.set()

    async def serve(self, host: str, port: int) -> None:
        try:
            self._server = await asyncio.open_connection(host, port)
            for _, writer in (self._client, self._server):
                writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:  # no server, or one side was reset meanwhile
            self.reset()
            return
        both = [asyncio.ensure_future(self._to_server()), asyncio.ensure_future(self._to_client())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in both:
                one.cancel()
            self.reset()
            await asyncio.gather(*both, return_exceptions=True)

    async def _pass(self) -> None:
        if self._proxy.delay_s:
            await asyncio.sleep(self._proxy.delay_s)
        await self._gate.wait()
        await self._proxy._open.wait()

    async def _to_server(self) -> None:
        assert self._server is not None
        with contextlib.suppress(OSError):
            while chunk := await self._client[0].read(_CHUNK):
                await self._pass()
                for sql in self._frames.feed(chunk):
                    if not self._losing and self._proxy.judge(sql):
                        self._losing = True
                self._server[1].write(chunk)
                await self._server[1].drain()

    async def _to_client(self) -> None:
        assert self._server is not None
        tail = b""
        with contextlib.suppress(OSError):
            while chunk := await self._server[0].read(_CHUNK):
                await self._pass()
                if self._losing:
                    tail = (tail + chunk)[-6:]
                    if tail[:5] == b"Z\0\0\0\5":
                        return  # done over there; both ends are reset
                    continue
                self._client[1].write(chunk)
                await self._client[1].drain()


class _Frames:
    """The client's side of the protocol: which statement is being executed."""

    def __init__(self) -> None:
        self._pending = b""
        self._started = False
        self._statements: dict[bytes, str] = {}
        self.application = ""

    def feed(self, chunk: bytes) -> list[str]:
        """Take more bytes; the SQL of each statement executed in them."""
        self._pending += chunk
        found: list[str] = []
        while True:
            head = 1 if self._started else 0
            if len(self._pending) < head + 4:
                return found
            length = head + struct.unpack_from("!I", self._pending, head)[0]
            if len(self._pending) < length:
                return found
            frame, self._pending = self._pending[:length], self._pending[length:]
            if not self._started:
                self._begin(frame)
            else:
                found += self._read(frame[:1], frame[5:])

    def _begin(self, frame: bytes) -> None:
        code = struct.unpack_from("!I", frame, 4)[0]
        if code not in (_SSL_REQUEST, _GSS_REQUEST):
            self._started = True
            words = frame[8:].split(b"\0")
            facts = dict(zip(words[::2], words[1::2], strict=False))
            self.application = facts.get(b"application_name", b"").decode(errors="replace")

    def _read(self, kind: bytes, body: bytes) -> list[str]:
        if kind == b"Q":
            return [body.rstrip(b"\0").decode(errors="replace")]
        if kind == b"P":
            name, sql, _ = body.split(b"\0", 2)
            self._statements[name] = sql.decode(errors="replace")
        elif kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            return [self._statements.get(name, "")]
        return []


_CALL: Final = re.compile(r'(?:from|select)\s+"?\w+"?\.(\w+)\(', re.IGNORECASE)


def function_called(sql: str) -> str | None:
    """The function of the queue's schema that *sql* calls: work, settle, renew ..."""
    found = _CALL.search(sql)
    return found.group(1) if found else None
