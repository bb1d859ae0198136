"""Kinds for the tests of what is shown: with a metric of the user's own, and errors that are all different."""

from prometheus_client import Counter, Gauge

from supervisor import Cancel, Job, handler

MODULES = "tests.support.handlers,tests.support.observe_handlers"

COUNTED = Counter("shop_orders", "Orders seen by the handler.", ["size"])
OPEN = Gauge("shop_open", "1 while the shop is open.", multiprocess_mode="max")
OPEN.set(1)


@handler("o.order", queue="orders")
async def order(size: str = "small") -> None:
    COUNTED.labels(size).inc()


@handler("o.unlike")
async def unlike(job: Job, text: str) -> None:
    """Die with a text that no other job has."""
    raise Cancel(f"{text} of job {job.id}")
