"""The kinds that test services run.

What a job did is written to the table `effects`, by a connection of its own that commits at
once: it stays true whatever happens to the job or its worker afterwards. The notes: `start`
before anything that may not end, `done` at the end.
"""

import asyncio
import ctypes
import gc
import os
import signal
import sys
import threading
import time
from typing import Any

import psycopg

from supervisor import Cancel, Job, Retry, Snooze, handler

_local = threading.local()


def record(job: Job, note: str) -> None:
    """Write one effect and commit it."""
    # Keyed by process too: a connection must never be used on both sides of a fork.
    if getattr(_local, "pid", None) != os.getpid() or _local.conn.closed:
        _local.conn = psycopg.connect(os.environ["EFFECTS_DATABASE_URL"], autocommit=True, application_name="effects")
        _local.pid = os.getpid()
    conn: psycopg.Connection[tuple[Any, ...]] = _local.conn
    conn.execute(
        "insert into effects (job_id, kind, attempt, pid, note) values (%s, %s, %s, %s, %s)",
        [job.id, job.kind, job.attempt, os.getpid(), note],
    )


@handler("t.noop")
async def noop() -> None:
    """Do nothing."""


@handler("t.effect")
async def effect(job: Job, note: str = "done") -> None:
    record(job, note)


@handler("t.effect_sync")
def effect_sync(job: Job, note: str = "done") -> None:
    record(job, note)


@handler("t.sleep")
async def sleep(job: Job, seconds: float) -> None:
    record(job, "start")
    await asyncio.sleep(seconds)
    record(job, "done")


@handler("t.sleep_sync")
def sleep_sync(job: Job, seconds: float) -> None:
    record(job, "start")
    time.sleep(seconds)
    record(job, "done")


@handler("t.stubborn")
async def stubborn(job: Job, seconds: float) -> None:
    """Run for its time whatever it is told."""
    record(job, "start")
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            record(job, "cancelled")
    record(job, "done")


@handler("t.fail")
async def fail(job: Job, times: int = 1_000_000) -> None:
    """Fail at the first *times* attempts."""
    if job.attempt <= times:
        record(job, "failed")
        raise RuntimeError(f"attempt {job.attempt} of job {job.id} fails as it was told")
    record(job, "done")


@handler("t.retry")
async def retry(job: Job, after: float, times: int = 1) -> None:
    record(job, "retry" if job.attempt <= times else "done")
    if job.attempt <= times:
        raise Retry(after, "told to")


@handler("t.snooze")
async def snooze(job: Job, after: float, until: float) -> None:
    """Put itself off until the time (seconds since 1970) has come."""
    if time.time() < until:
        record(job, "snoozed")
        raise Snooze(after)
    record(job, "done")


@handler("t.cancel")
async def cancel(job: Job, reason: str = "told to") -> None:
    record(job, "cancel")
    raise Cancel(reason)


@handler("t.raise_system_exit")
async def raise_system_exit(job: Job, code: int = 3) -> None:
    record(job, "start")
    sys.exit(code)


@handler("t.raise_system_exit_sync")
def raise_system_exit_sync(job: Job, code: int = 3) -> None:
    record(job, "start")
    sys.exit(code)


@handler("t.keyboard_interrupt")
async def keyboard_interrupt(job: Job) -> None:
    record(job, "start")
    raise KeyboardInterrupt


@handler("t.segv")
async def segv(job: Job) -> None:
    record(job, "start")
    os.kill(os.getpid(), signal.SIGSEGV)


@handler("t.segv_read")
async def segv_read(job: Job) -> None:
    """Read address 0, as a broken extension does."""
    record(job, "start")
    ctypes.string_at(0)


@handler("t.segv_read_sync")
def segv_read_sync(job: Job) -> None:
    """The same in a thread."""
    record(job, "start")
    ctypes.string_at(0)


@handler("t.exit")
async def exit_now(job: Job, code: int = 7) -> None:
    """End the process without a word, as a C library may."""
    record(job, "start")
    os._exit(code)


@handler("t.exit_sync")
def exit_now_sync(job: Job, code: int = 7) -> None:
    """The same in a thread."""
    record(job, "start")
    os._exit(code)


@handler("t.allocate")
async def allocate(job: Job, seconds: float) -> None:
    """Make and drop many objects, so that the garbage collector finds whatever a fork left behind."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        kept = [[{"number": number} for number in range(200)] for _ in range(50)]
        kept[0].append({"cycle": kept})  # type: ignore[dict-item]
        del kept
        gc.collect()
        await asyncio.sleep(0)
    record(job, "done")


@handler("t.stubborn_sync")
def stubborn_sync(job: Job, seconds: float) -> None:
    """Run for its time in a thread and never look whether it was told to stop."""
    record(job, "start")
    time.sleep(seconds)
    record(job, "done")


@handler("t.block")
async def block(job: Job, seconds: float) -> None:
    """Hold up the worker's loop; other threads run."""
    record(job, "start")
    time.sleep(seconds)
    record(job, "done")


@handler("t.gil")
def gil(job: Job, seconds: float) -> None:
    """Hold the interpreter lock: no other Python code of the process runs. In C, so a signal does not end it."""
    record(job, "start")
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        ctypes.PyDLL(None).usleep(int(min(left, 60) * 1_000_000))  # PyDLL keeps the lock, unlike CDLL
    record(job, "done")


_leaked: list[bytearray] = []


@handler("t.leak")
def leak(job: Job, mib: int = 1, seconds: float = 0.1) -> None:
    """Keep so much more memory with each run."""
    _leaked.append(bytearray(b"x") * (mib * 2**20))
    time.sleep(seconds)
    record(job, "done")
