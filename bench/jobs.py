"""What the benches run."""

import asyncio
import os
import socket
import time

from supervisor import handler

SOCKET = "BENCH_SOCKET"
_socket: socket.socket | None = None


@handler("bench.noop")
async def noop(n: int, note: str) -> None:
    """Do nothing: what is left is the cost of the queue."""


@handler("bench.mark")
async def mark(n: int, note: str) -> None:
    """Tell the bench when this began, by a datagram."""
    now = time.monotonic_ns()
    global _socket
    if _socket is None:
        _socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        _socket.connect(os.environ[SOCKET])
    _socket.send(f"{n} {now}".encode())


@handler("bench.hold", max_crashes=1_000)
async def hold(seconds: float) -> None:
    """Run for a while."""
    await asyncio.sleep(seconds)
