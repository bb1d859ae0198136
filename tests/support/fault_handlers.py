"""The kinds that the fault tests run, beside those of handlers.py: they tell more of how they ended."""

import asyncio
import contextlib
import random
import time

from supervisor import Job, handler
from tests.support.handlers import record

MODULES = "tests.support.handlers,tests.support.fault_handlers"


@handler("f.slow")
async def slow(job: Job, seconds: float) -> None:
    """Note how it ended: done, or stopped by whoever cancelled it."""
    record(job, "start")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        record(job, "stopped")
        raise
    record(job, "done")


@handler("f.slow_sync")
def slow_sync(job: Job, seconds: float) -> None:
    record(job, "start")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if job.cancelled:
            record(job, "stopped")
            job.raise_if_cancelled()
        time.sleep(0.01)
    record(job, "done")


_INSERT = "insert into effects (job_id, kind, attempt, pid, note) values (%s, %s, %s, pg_backend_pid(), %s)"


@handler("f.transaction", max_crashes=1000)
async def transaction(job: Job, before_s: float = 0.0, inside_s: float = 0.0, fail_times: int = 0) -> None:
    """Write one effect in the transaction that ends the job."""
    await asyncio.sleep(before_s)
    async with job.transaction() as conn:
        await conn.execute(_INSERT, [job.id, job.kind, job.attempt, "written"])
        await asyncio.sleep(inside_s)
        if job.attempt <= fail_times:
            raise RuntimeError(f"attempt {job.attempt} of job {job.id} fails as it was told")


@handler("f.transaction_sync", max_crashes=1000)
def transaction_sync(job: Job, before_s: float = 0.0, inside_s: float = 0.0, fail_times: int = 0) -> None:
    time.sleep(before_s)
    with job.transaction() as conn:
        conn.execute(_INSERT, [job.id, job.kind, job.attempt, "written"])
        time.sleep(inside_s)
        if job.attempt <= fail_times:
            raise RuntimeError(f"attempt {job.attempt} of job {job.id} fails as it was told")


class Undo(Exception):
    """Ends a transaction without a trace."""


@handler("f.hurried")
async def hurried(job: Job) -> None:
    """Use pooled connections until the time limit (given by the job) strikes, at whatever moment that is."""
    while True:
        with contextlib.suppress(Undo):
            async with job.transaction() as conn:
                await conn.execute("select pg_sleep(%s)", [random.random() * 0.004])
                await conn.execute("select 1")
                raise Undo


@handler("f.reads_its_row")
async def reads_its_row(job: Job, order_id: int) -> None:
    """The row that was written with the job is there, or this fails."""
    async with job.transaction() as conn:
        found = await (await conn.execute("select count(*) from orders where id = %s", [order_id])).fetchone()
        if found is None or found[0] != 1:
            raise LookupError(f"order {order_id} is not there")
        await conn.execute("update orders set seen = seen + 1 where id = %s", [order_id])


@handler("f.newer")
async def newer(job: Job) -> None:
    """A kind that services without this module do not know."""
    record(job, "done")


@handler("f.typed")
async def typed(job: Job, number: int, names: list[str] | None = None) -> None:
    record(job, f"typed {number} {len(names or [])}")


@handler("f.measure")
async def measure(job: Job, text: str) -> None:
    """Note the length of what arrived."""
    record(job, f"{len(text)} characters")


@handler("f.fail_late")
async def fail_late(job: Job, seconds: float) -> None:
    """Fail, but not if an earlier run was lost."""
    record(job, "start")
    await asyncio.sleep(seconds)
    if job.crashes == 0:
        record(job, "failed")
        raise RuntimeError("as it was told")
    record(job, "done")
