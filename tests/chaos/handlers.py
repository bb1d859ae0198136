"""The kinds of the chaos run.

Each run writes a row when it begins and one when it ends, by a connection of its own, with the fencing
token and the session it ran under: so a second run of a job, and why there was one, can be told afterwards.
"""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg

from supervisor import Job, handler

_local = threading.local()


def _sleep(seconds: float) -> None:
    """As time.sleep, which fails under libfaketime: that takes a monotonic clock's times for a wall clock's."""
    threading.Event().wait(seconds)


def _write(sql: str, parameters: tuple[object, ...]) -> None:
    """Commit one row, through restarts of the server: a run that cannot say what it did would prove nothing."""
    deadline = time.monotonic() + 60
    while True:
        try:
            if getattr(_local, "pid", None) != os.getpid() or _local.conn.closed:
                _local.conn = psycopg.connect(
                    os.environ["EFFECTS_DATABASE_URL"], autocommit=True, application_name="chaos effects"
                )
                _local.pid = os.getpid()
            conn: psycopg.Connection[Any] = _local.conn
            conn.execute(sql.encode(), parameters)
            return
        except psycopg.OperationalError:
            with contextlib.suppress(Exception):
                _local.conn.close()
            if time.monotonic() > deadline:
                raise
            _sleep(0.05)


def begin(job: Job) -> None:
    _write(
        "insert into chaos_run (job_id, token, attempt, pid, note, session) values (%s, %s, %s, %s, 'begin',"
        " (select lease from supervisor.job where id = %s and claims = %s))",
        (job.id, job.token, job.attempt, os.getpid(), job.id, job.token),
    )


def end(job: Job) -> None:
    _write(
        "insert into chaos_run (job_id, token, attempt, pid, note) values (%s, %s, %s, %s, 'end')",
        (job.id, job.token, job.attempt, os.getpid()),
    )


@contextlib.contextmanager
def recorded(job: Job) -> Iterator[None]:
    begin(job)
    yield
    end(job)


@handler("c.fast")
async def fast(job: Job) -> None:
    with recorded(job):
        await asyncio.sleep(0)


@handler("c.async")
async def async_(job: Job, seconds: float) -> None:
    with recorded(job):
        await asyncio.sleep(seconds)


@handler("c.sync")
def sync(job: Job, seconds: float) -> None:
    with recorded(job):
        _sleep(seconds)


@handler("c.flaky", max_attempts=50)
async def flaky(job: Job, failures: int) -> None:
    begin(job)
    if job.attempt <= failures:
        raise RuntimeError("told to fail")
    end(job)


@handler("c.exact", max_attempts=50)
async def exact(job: Job) -> None:
    """Its effect and its end commit together: exactly once, whatever happens."""
    begin(job)
    async with job.transaction() as conn:
        await conn.execute("insert into chaos_exact (job_id, token) values (%s, %s)", (job.id, job.token))


@handler("c.hold", max_attempts=50)
async def hold(job: Job, seconds: float) -> None:
    """As `exact`, and keeps its connection: many of these leave none for others."""
    async with job.transaction() as conn:
        await conn.execute("insert into chaos_exact (job_id, token) values (%s, %s)", (job.id, job.token))
        await asyncio.sleep(seconds)


@handler("c.broken", max_attempts=3)
async def broken(job: Job) -> None:
    begin(job)
    raise RuntimeError("always fails")


@handler("c.poison", max_crashes=2)
def poison(job: Job) -> None:
    """Kills its worker, each time."""
    begin(job)
    os.kill(os.getpid(), signal.SIGKILL)
    _sleep(60)


@handler("c.stubborn", timeout=0.3, kill_after=0.3, max_attempts=2)
def stubborn(job: Job) -> None:
    """Ignores its time limit: its worker is killed for it."""
    begin(job)
    _sleep(3600)
