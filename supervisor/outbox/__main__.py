"""A relay or a consumer as a child of the service: `python -m supervisor.outbox relay`, started by its parent only.

    stdin   a pickled (settings, database address, directory of metrics) from the parent, then nothing until it is gone

Its log goes where the parent's goes. Its exit codes are those of the service: 78 when it cannot start as it is set.
"""

import asyncio
import pickle
import sys
from typing import Final

import uvloop

from supervisor import exits, log, metrics
from supervisor.errors import SupervisorError
from supervisor.outbox import role as roles
from supervisor.settings import Settings

_LENGTH: Final = 8


def main() -> int:
    """Work until told to stop or until the parent is gone; the exit code."""
    role = sys.argv[1]
    size = int.from_bytes(sys.stdin.buffer.read(_LENGTH), "big")
    # From our own parent, over a pipe that nobody else has: as trustworthy as this process's own memory.
    settings, url, metrics_dir = pickle.loads(sys.stdin.buffer.read(size))  # noqa: S301
    log.configure(settings.log_format, settings.log_level)
    metrics.setup(metrics_dir, role)
    try:
        code = uvloop.run(_work(role, settings, url))
    except SupervisorError as error:
        log.get_logger(role).error(f"{role}.refused", reason=str(error))
        code = exits.CONFIG
    log.flush()
    return code


async def _work(role: str, settings: Settings, url: str) -> int:
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def watch() -> None:
        await reader.read()
        gone.set()

    watching = loop.create_task(watch())
    try:
        work = roles.relay if role == "relay" else roles.consume
        return await work(settings, url, until=gone)
    finally:
        watching.cancel()


if __name__ == "__main__":
    sys.exit(main())
