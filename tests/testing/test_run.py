"""supervisor.testing.run: through the codec, and to the outcome that the service would record."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from supervisor import Backoff, Cancel, Job, NewJob, Retry, Snooze, handler
from supervisor.errors import InvalidJob
from supervisor.testing import run, run_async, run_job, run_job_async


def test_what_the_handler_gets_has_been_through_json() -> None:
    seen: list[Any] = []

    @handler("t.codec")
    def codec(when: datetime, many: tuple[int, ...], lang: str = "en") -> None:
        seen.append((when, many, lang))

    when = datetime(2031, 2, 3, tzinfo=UTC)
    ran = run(codec, when, many=(1, 2))
    assert (ran.event, ran.status, ran.reason, ran.error, ran.due_in_s) == ("done", "done", None, None, None)
    assert seen == [(when, (1, 2), "en")]
    with pytest.raises(InvalidJob, match="many"):
        run(codec, when, many=("x",))  # type: ignore[arg-type]


def test_a_payload_that_does_not_fit_and_an_unknown_kind() -> None:
    @handler("t.fit")
    def fit(n: int) -> None: ...

    ran = run_job(NewJob("t.fit", {"n": "x"}))
    assert (ran.event, ran.status, ran.reason) == ("dead", "dead", "payload")
    ran = run_job(NewJob("t.nobody"))
    assert (ran.event, ran.status, ran.reason, ran.due_between_s) == ("unknown", "queued", "unknown_kind", (0.5, 1.5))


def test_failures_wait_as_their_handler_says_until_the_last() -> None:
    @handler("t.fails", max_attempts=4, backoff=Backoff(10, 60))
    def fails() -> None:
        raise ValueError("no")

    first = run(fails)
    assert (first.event, first.status, first.reason, first.attempt) == ("failed", "queued", "error", 1)
    assert (first.due_in_s, first.due_between_s) == (20, (10, 30))
    assert first.error is not None
    assert first.error.startswith("ValueError: no\n")
    assert isinstance(first.exception, ValueError)
    assert run_job(fails.new_job(), attempt=3).due_in_s == 60
    last = run_job(fails.new_job(), attempt=4)
    assert (last.event, last.status, last.reason, last.due_in_s) == ("failed", "dead", "attempts", None)
    assert run(fails.at(max_attempts=1)).status == "dead"


def test_a_backoff_function_and_what_a_handler_asks_for() -> None:
    @handler("t.function", backoff=lambda attempt: timedelta(seconds=7 * attempt))
    def function() -> None:
        raise ValueError

    @handler("t.asks")
    def asks(how: str) -> None:
        raise {"retry": Retry(after=5), "snooze": Snooze(after=60), "cancel": Cancel("no use")}[how]

    assert run_job(function.new_job(), attempt=2).due_between_s == (14, 14)
    retried, snoozed, cancelled = (run(asks, how) for how in ("retry", "snooze", "cancel"))
    assert (retried.event, retried.status, retried.due_in_s) == ("failed", "queued", 5)
    assert (snoozed.event, snoozed.status, snoozed.due_in_s) == ("snoozed", "queued", 60)
    assert (cancelled.event, cancelled.status, cancelled.reason) == ("dead", "dead", "cancel")
    assert cancelled.error == "Cancel: no use"


def test_the_job_a_handler_sees() -> None:
    seen: list[Job] = []

    @handler("t.job", queue="q", timeout=30)
    def job_of(job: Job, n: int) -> None:
        seen.append(job)

    assert run_job(job_of.at(headers={"a": "b"}, max_attempts=9).new_job(1), attempt=3).status == "done"
    [job] = seen
    assert (job.kind, job.queue, job.attempt, job.max_attempts, job.headers) == ("t.job", "q", 3, 9, {"a": "b"})
    assert job.deadline is not None
    assert not job.cancelled

    @handler("t.transaction")
    def in_transaction(job: Job) -> None:
        with job.transaction():
            pass

    assert "use drain(conn)" in str(run(in_transaction).error)


def test_async_handlers_run_from_both_worlds_and_time_out() -> None:
    @handler("t.async", timeout=0.05)
    async def waits(long: bool) -> None:
        await asyncio.sleep(60 if long else 0)

    assert run(waits, long=False).status == "done"
    ran = run(waits, long=True)
    assert (ran.event, ran.status, ran.reason) == ("failed", "queued", "timeout")

    async def inside() -> None:
        assert (await run_async(waits, long=False)).status == "done"
        assert (await run_async(waits, long=True)).reason == "timeout"
        assert run(waits, long=False).status == "done"  # its own loop, in a thread

    asyncio.run(inside())


def test_a_plain_handlers_timeout() -> None:
    @handler("t.plain", timeout=0.01)
    def looks(job: Job) -> None:
        while True:
            job.raise_if_cancelled()
            time.sleep(0.001)

    assert run(looks).reason == "timeout"


def test_a_cancel_while_it_runs() -> None:
    @handler("t.cancel.async")
    async def waits() -> None:
        await asyncio.sleep(60)

    @handler("t.cancel.plain")
    def looks(job: Job, heed: bool) -> None:
        if heed:
            job.raise_if_cancelled()

    for job in (waits.new_job(), looks.new_job(heed=True)):
        ran = run_job(job, cancel=True)
        assert (ran.status, ran.reason) == ("cancelled", "operator")
    assert run_job(looks.new_job(heed=False), cancel=True).status == "done"
    assert asyncio.run(run_job_async(waits.new_job(), cancel=True)).status == "cancelled"


def test_whatever_a_handler_raises_is_its_outcome() -> None:
    @handler("t.exits.async")
    async def leaves() -> None:
        raise SystemExit(3)

    @handler("t.exits.plain")
    def leaves_too() -> None:
        raise SystemExit(3)

    for one in (leaves, leaves_too):
        ran = run(one)
        assert (ran.status, isinstance(ran.exception, SystemExit)) == ("queued", True)
