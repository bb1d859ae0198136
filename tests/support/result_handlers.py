"""Kinds that return something, say how far they have come, or do not stop."""

import asyncio
import os
import time
from typing import Any

from pydantic import BaseModel

from supervisor import Cancel, Job, Snooze, handler
from tests.support.handlers import record


class Sum(BaseModel):
    total: int
    parts: list[int]


@handler("r.add", result_for=3600)
async def add(a: int, b: int) -> Sum:
    return Sum(total=a + b, parts=[a, b])


@handler("r.add_sync", result_for=3600)
def add_sync(a: int, b: int) -> int:
    return a + b


@handler("r.none", result_for=3600)
async def none() -> None:
    return None


@handler("r.plain")
async def plain() -> int:
    """Nothing is kept of it."""
    return 7


@handler("r.brief", result_for=0.05)
async def brief() -> int:
    return 1


@handler("r.large", result_for=3600)
async def large(size: int) -> str:
    return "x" * size


@handler("r.wrong", result_for=3600)
async def wrong() -> int:
    return "no number"  # type: ignore[return-value]


@handler("r.unstorable", result_for=3600)
async def unstorable() -> Any:
    return {"text": "a\0b"}


@handler("r.sleep", result_for=3600)
async def sleep(job: Job, seconds: float) -> str:
    record(job, "start")
    await asyncio.sleep(seconds)
    record(job, "done")
    return "slept"


@handler("r.in_transaction", result_for=3600)
async def in_transaction(job: Job, give: bool = True) -> Any:
    async with job.transaction() as conn:
        await conn.execute("insert into effects (job_id, kind, attempt, pid) values (%s, 'tx', 1, 0)", [job.id])
        if give:
            job.set_result({"from": "the transaction"})
    return "too late"


@handler("r.in_transaction_sync", result_for=3600)
def in_transaction_sync(job: Job) -> list[int] | None:
    with job.transaction() as conn:
        conn.execute("insert into effects (job_id, kind, attempt, pid) values (%s, 'tx', 1, 0)", [job.id])
        job.set_result([1, 2])
    return None


@handler("r.sets_without_keeping")
async def sets_without_keeping(job: Job) -> None:
    job.set_result(1)


@handler("r.fail", max_attempts=1)
async def fail() -> None:
    raise RuntimeError("it went wrong")


@handler("r.cancel")
async def cancel() -> None:
    raise Cancel("no use")


@handler("r.dies_once", result_for=3600)
async def dies_once(job: Job) -> str:
    """Take the worker down after having returned, the first time."""
    record(job, "run")
    if job.crashes == 0 and job.token == 1:
        asyncio.get_running_loop().call_later(0.0, _stop_the_loop_and_die)
    return f"token {job.token}"


def _stop_the_loop_and_die() -> None:
    os.kill(os.getpid(), 9)


@handler("r.progress")
async def progress(job: Job, steps: int, pause: float) -> None:
    for step in range(1, steps + 1):
        job.progress(step / steps, f"step {step} of {steps}")
        await asyncio.sleep(pause)
    record(job, "done")


@handler("r.progress_sync")
def progress_sync(job: Job, steps: int, pause: float) -> None:
    for step in range(1, steps + 1):
        job.progress(step / steps, f"step {step} of {steps}")
        time.sleep(pause)
    record(job, "done")


@handler("r.snooze_sync", max_attempts=2)
def snooze_sync(job: Job, times: int) -> None:
    record(job, f"attempt {job.attempt} token {job.token}")
    if job.token <= times:
        raise Snooze(0.05)


@handler("r.snooze", max_attempts=2)
async def snooze(job: Job, times: int) -> None:
    record(job, f"attempt {job.attempt} token {job.token}")
    if job.token <= times:
        raise Snooze(0.05)


@handler("r.snooze_result", max_attempts=2, result_for=3600)
async def snooze_result(job: Job, times: int) -> int:
    record(job, f"attempt {job.attempt} token {job.token}")
    if job.token <= times:
        raise Snooze(0.05)
    return job.token


@handler("r.snooze_in_transaction", max_attempts=2)
async def snooze_in_transaction(job: Job, times: int) -> None:
    record(job, f"attempt {job.attempt} token {job.token}")
    async with job.transaction():
        if job.token <= times:
            raise Snooze(0.05)
