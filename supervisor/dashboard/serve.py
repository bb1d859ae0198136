"""Serves the dashboard over HTTP, alone or as a child of the service.

    supervisor dashboard                 bind --> serve until SIGTERM or SIGINT
    supervisor run, with a port set      the parent starts `python -m supervisor.dashboard` and hands over settings
                                         on its standard input; end of file there means that the parent is gone

Always true: an address that cannot be bound is told in one line; it stops within seconds, since a page that is
under way is not worth waiting for.

Elsewhere: the application (app.py); how the service starts and restarts the child (parent/helper.py).
"""

import asyncio
import contextlib
import errno
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

import uvicorn

from supervisor.dashboard import DEFAULT_PORT
from supervisor.dashboard.app import Dashboard
from supervisor.errors import SettingsInvalid
from supervisor.log import get_logger
from supervisor.settings import Settings

_STOP_S: Final = 2
_KEEP_ALIVE_S: Final = 15
_MOST_CONNECTIONS: Final = 200

log = get_logger("dashboard")


def bind(settings: Settings) -> socket.socket:
    """A listening socket at the dashboard's address. Raises SettingsInvalid when there can be none."""
    host = settings.dashboard_host
    port = DEFAULT_PORT if settings.dashboard_port is None else settings.dashboard_port
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise SettingsInvalid([f"SUPERVISOR_DASHBOARD_HOST={host}: no such address"]) from None
    family, _, _, _, address = found[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(128)
    except OSError as error:
        sock.close()
        reasons = {
            errno.EADDRINUSE: f"in use on {host}: choose another, or auto for a free one",
            errno.EACCES: "not permitted: ports below 1024 need a privilege",
        }
        why = reasons.get(error.errno or 0, f"cannot be bound on {host}: {error.strerror}")
        raise SettingsInvalid([f"SUPERVISOR_DASHBOARD_PORT={port}: {why}"]) from None
    sock.setblocking(False)
    return sock


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: it would raise the signal once more at the end, and die of it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    settings: Settings,
    database_url: str,
    *,
    on_serving: Callable[[str], None] | None = None,
    until: asyncio.Event | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT, or *until*; *on_serving* is told the address once it is bound.

    Raises:
        SettingsInvalid: the address cannot be bound, or anybody could open the dashboard.
    """
    if problem := settings.open_dashboard():
        raise SettingsInvalid([problem])
    sock = bind(settings)
    server = _Server(
        uvicorn.Config(
            Dashboard(settings, database_url),
            log_config=None,
            log_level="warning",  # its start and stop are said by us
            access_log=False,
            server_header=False,
            root_path=settings.dashboard_root_path,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_STOP_S,
            limit_concurrency=_MOST_CONNECTIONS,
        )
    )
    address = f"http://{_host(sock, settings)}:{sock.getsockname()[1]}{settings.dashboard_root_path}/"
    async with _stopped_by(server, until or asyncio.Event()):
        log.info("dashboard.serving", address=address, read_only=settings.dashboard_read_only)
        if on_serving is not None:
            on_serving(address)
        await server.serve(sockets=[sock])
    log.info("dashboard.stopped")


@contextlib.asynccontextmanager
async def _stopped_by(server: uvicorn.Server, until: asyncio.Event) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.force_exit = server.should_exit  # said twice: at once
        server.should_exit = True

    async def wait() -> None:
        await until.wait()
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    waiting = loop.create_task(wait())
    try:
        yield
    finally:
        waiting.cancel()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _host(sock: socket.socket, settings: Settings) -> str:
    host = settings.dashboard_host.strip("[]")
    return f"[{host}]" if sock.family == socket.AF_INET6 else host
