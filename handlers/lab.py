"""The kinds of `supervisor demo`: one that works, one that fails once, one that always fails, one that is slow.

With SUPERVISOR_LAB_DATABASE_URL set, each call writes a row to the table `lab_call` there, on a connection
of its own that commits at once: how often a handler was called stays true whatever becomes of the job.

    create table lab_call (kind text, job_id bigint, attempt int, pid int, at timestamptz default clock_timestamp())

Always true: the row is written before anything else happens. The connection is opened at the first call, so
never before the fork.

Elsewhere: what the demo expects of them (supervisor/demo).
"""

import asyncio
import os
from typing import Any, Final

import psycopg

from supervisor import Backoff, Job, handler

ADDRESS: Final = "SUPERVISOR_LAB_DATABASE_URL"
MAX_ATTEMPTS: Final = 3
BACKOFF: Final = Backoff(base=0.02, cap=10.0)  # 20 ms * 2^attempts

_conn: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
_connecting = asyncio.Lock()


@handler("email", max_attempts=MAX_ATTEMPTS, backoff=BACKOFF)
async def email(job: Job, n: int) -> None:
    """Take about a millisecond, as handing a message to a mail server does."""
    await _record(job)
    await asyncio.sleep(0.001)


@handler("flaky", max_attempts=MAX_ATTEMPTS, backoff=BACKOFF)
async def flaky(job: Job, n: int) -> None:
    """Fail at the first attempt."""
    await _record(job)
    if job.attempt == 1:
        raise ConnectionResetError(f"flaky {n} fails at its first attempt")


@handler("broken", max_attempts=MAX_ATTEMPTS, backoff=BACKOFF)
async def broken(job: Job, n: int) -> None:
    """Fail at every attempt."""
    await _record(job)
    raise ValueError(f"broken {n} always fails")


@handler("slow", max_attempts=MAX_ATTEMPTS, backoff=BACKOFF)
async def slow(job: Job, n: int) -> None:
    """Take longer than the demo's lease."""
    await _record(job)
    await asyncio.sleep(0.9)


async def _record(job: Job) -> None:
    address = os.environ.get(ADDRESS)
    if not address:
        return
    global _conn
    async with _connecting:
        if _conn is None or _conn.closed:
            _conn = await psycopg.AsyncConnection.connect(address, autocommit=True, application_name="lab")
    await _conn.execute(
        "insert into lab_call (kind, job_id, attempt, pid) values (%s, %s, %s, %s)",
        (job.kind, job.id, job.attempt, os.getpid()),
    )
