"""What the parent hands to a program beside the workers (the dashboard, a relay, a consumer), on its standard input.

    parent   length, then pickled: settings, address, directory of metrics ---> the program begins
             nothing more: it holds the pipe's other end -----------------------> end of input: the parent is gone

Always true: nothing of it is on a command line or in the environment, where others could read the address; a program
whose parent died is told so by the kernel, however the parent died.

Elsewhere: starting and stopping it (parent/helper.py).
"""

import asyncio
import pickle
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from supervisor.settings import Settings

_LENGTH: Final = 8


class Handed(NamedTuple):
    """What such a program works with; without a directory of metrics it does not count."""

    settings: Settings
    database_url: str
    metrics_dir: str | None

    def packed(self) -> bytes:
        """As it is written to the program's standard input."""
        text = pickle.dumps(tuple(self))
        return len(text).to_bytes(_LENGTH, "big") + text


def receive() -> Handed:
    """What this program's parent handed to it; called once, first of all."""
    size = int.from_bytes(sys.stdin.buffer.read(_LENGTH), "big")
    # From our own parent, over a pipe that nobody else has: as trustworthy as this process's own memory.
    return Handed(*pickle.loads(sys.stdin.buffer.read(size)))  # noqa: S301


@asynccontextmanager
async def parent_gone() -> AsyncIterator[asyncio.Event]:
    """An event that is set when the parent is gone; after `receive`."""
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def watch() -> None:
        await reader.read()
        gone.set()

    watching = loop.create_task(watch())
    try:
        yield gone
    finally:
        watching.cancel()
