"""What the benches run."""

import asyncio

from supervisor import handler


@handler("bench.noop")
async def noop(n: int, note: str) -> None:
    """Do nothing: what is left is the cost of the queue."""


@handler("bench.hold", max_crashes=1_000)
async def hold(seconds: float) -> None:
    """Run for a while."""
    await asyncio.sleep(seconds)
