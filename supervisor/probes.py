"""/livez, /readyz and /metrics over HTTP: what a platform asks a service, a relay or a consumer.

    the loop --facts--> Health <--asked by-- health thread <--HTTP-- probes, Prometheus

The server has a thread with a small event loop of its own, and another thread that adds up the metrics. It never asks
the database, other processes or the main loop, so it answers at once whatever they do; what it knows is what the loop
noted last, and how long ago.

    /livez    200 while the loop turns; says nothing about the database, since a restart would not bring that back
    /readyz   200 while it does what it is there for; else 503 with the reasons
    /metrics  the numbers of all processes

Always true: at most `MAX_CONNECTIONS` clients; one that is slow to ask or to read is dropped after `PATIENCE_S`, or
sooner if others want its place. No answer holds a name, an address or any text from outside.

Elsewhere: the numbers (metrics/); what is healthy (parent/health.py, outbox/alone.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

from supervisor.errors import SettingsInvalid

STALE_S: Final = 10.0  # a loop that has not turned for so long is stuck
PATIENCE_S: Final = 10.0
MAX_CONNECTIONS: Final = 64
MAX_REQUEST: Final = 8192
JSON_TYPE: Final = "application/json"
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Health(Protocol):
    """What the server asks; from its own thread."""

    def live(self) -> tuple[bool, dict[str, Any]]:
        """Whether the loop turns, and the answer of /livez."""

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Whether it does what it is there for, and the answer of /readyz."""


class HealthServer:
    """The server; `start` binds and returns, `stop` closes.

    Args:
        host: An IPv4 or IPv6 address or a name; "::" takes IPv4 too.
        port: 0 picks a free one; see `port`.
        render: Makes the page of /metrics.
    """

    def __init__(self, state: Health, render: Callable[[], bytes], *, host: str, port: int) -> None:
        self._state = state
        self._render = render
        self._host = host
        self._wanted_port = port
        self.port = 0
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._pages = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metrics-page")
        self._page: asyncio.Future[bytes] | None = None

    def start(self) -> None:
        """Bind, and serve from a thread.

        Raises:
            SettingsInvalid: The address cannot be bound.
        """
        self._socket = self._bind()
        self.port = self._socket.getsockname()[1]
        begun = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(begun,), name="health", daemon=True)
        self._thread.start()
        begun.wait(10)

    def stop(self) -> None:
        """Close; clients that are being answered are cut off."""
        if self._thread is None or self._loop is None or self._stop is None:
            return
        with contextlib.suppress(RuntimeError):  # its loop is closed already
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5)
        self._thread = None
        self._pages.shutdown(wait=False, cancel_futures=True)

    def _bind(self) -> socket.socket:
        try:
            found = socket.getaddrinfo(self._host, self._wanted_port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError):
            raise SettingsInvalid([f"SUPERVISOR_HEALTH_HOST={self._host}: no such address"]) from None
        family, _, _, _, address = found[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if address[0] == "::" else 1)
            sock.bind(address)
            sock.listen(128)
        except OSError as error:
            sock.close()
            raise SettingsInvalid([self._why(error)]) from None
        sock.setblocking(False)
        return sock

    def _why(self, error: OSError) -> str:
        port = f"SUPERVISOR_HEALTH_PORT={self._wanted_port}"
        if error.errno == errno.EADDRINUSE:
            return f"{port}: in use on {self._host}: choose another, or auto for a free one, or off for none"
        if error.errno == errno.EACCES:
            return f"{port}: not permitted: ports below 1024 need a privilege"
        return f"SUPERVISOR_HEALTH_HOST={self._host}: cannot be bound: {error.strerror}"

    def _run(self, begun: threading.Event) -> None:
        # Not uvloop: the standard loop does, and its failure modes are the well-known ones.
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(self._serve(begun))

    async def _serve(self, begun: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda *_: None)  # broken connections of probes are nobody's news
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._client, sock=self._socket, limit=MAX_REQUEST)
        begun.set()
        await self._stop.wait()
        server.close()
        for task, writer in list(self._clients.items()):
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        while len(self._clients) >= MAX_CONNECTIONS:  # the longest-served makes room: it is the slowest
            oldest = next(iter(self._clients))
            self._clients.pop(oldest).transport.abort()
            oldest.cancel()
        self._clients[task] = writer
        try:
            async with asyncio.timeout(PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(head))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            self._clients.pop(task, None)

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _response(405, JSON_TYPE, _json({"error": "GET or HEAD only"}))
        body_wanted = method == b"GET"
        if path == b"/metrics":
            try:
                return _response(200, METRICS_TYPE, await self._metrics(), body_wanted)
            except Exception as error:
                return _response(500, JSON_TYPE, _json({"error": type(error).__name__}), body_wanted)
        if path == b"/livez":
            ok, answer = self._state.live()
        elif path == b"/readyz":
            ok, answer = self._state.ready()
        else:
            return _response(404, JSON_TYPE, _json({"paths": ["/livez", "/readyz", "/metrics"]}), body_wanted)
        return _response(200 if ok else 503, JSON_TYPE, _json(answer), body_wanted)

    async def _metrics(self) -> bytes:
        """The page; clients that ask at the same time get the same one."""
        if self._page is None or self._page.done():
            assert self._loop is not None
            self._page = self._loop.run_in_executor(self._pages, self._render)
        return await asyncio.shield(self._page)


_REASONS: Final = {
    200: "OK", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


def _response(status: int, content_type: str, body: bytes, body_wanted: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if body_wanted else b"")


def _json(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode() + b"\n"
