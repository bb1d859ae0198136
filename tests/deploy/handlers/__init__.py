"""Kinds that tests/deploy mounts into the container in place of the image's own.

Always true: nothing here is imported by the tests themselves; it meets the service as a user's folder does.
"""

import asyncio
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import psycopg

from supervisor import Job, handler

_conn: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
_connecting = asyncio.Lock()


@handler("d.sleep")
async def sleep(seconds: float) -> None:
    """Take a while."""
    await asyncio.sleep(seconds)


@handler("d.stubborn")
async def stubborn(seconds: float) -> None:
    """Take a while, whatever it is told meanwhile."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


@handler("d.litter")
def litter(count: int, seconds: float) -> None:
    """Leave programs behind that go on in the background after whoever started them has ended."""
    for _ in range(count):
        subprocess.run(["sh", "-c", f"sleep {seconds} &"], check=True)


@handler("d.note")
async def note(job: Job, seconds: float) -> None:
    """Say in the table `effects` that it runs, committed at once, and take a while."""
    global _conn
    async with _connecting:
        if _conn is None:
            address = Path(os.environ["SUPERVISOR_DATABASE_URL_FILE"]).read_text().strip()
            _conn = await psycopg.AsyncConnection.connect(address, autocommit=True, application_name="effects")
    await _conn.execute("insert into effects (job_id, pod) values (%s, %s)", (job.id, socket.gethostname()))
    await asyncio.sleep(seconds)
