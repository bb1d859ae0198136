"""Kinds that tests/deploy mounts into the container in place of the image's own.

Always true: nothing here is imported by the tests themselves; it meets the service as a user's folder does.
"""

import asyncio
import subprocess
import time

from supervisor import handler


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
