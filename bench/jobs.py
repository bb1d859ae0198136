"""What the benches run."""

from supervisor import handler


@handler("bench.noop")
async def noop(n: int, note: str) -> None:
    """Do nothing: what is left is the cost of the queue."""
