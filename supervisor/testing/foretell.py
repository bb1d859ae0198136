"""Run one handler and say how the service would record it, without a database.

The counts and waits are those of job.py and backoff.py, which the tests of this package hold against the database.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from supervisor.backoff import Backoff
from supervisor.db.jobs import ClaimedJob
from supervisor.handler import BoundHandler
from supervisor.job import Event, Status, apply
from supervisor.keys import check_int
from supervisor.outcome import Outcome
from supervisor.testing.perform import Performance
from supervisor.testing.ran import Ran
from supervisor.worker.results import settlement_of

if TYPE_CHECKING:
    from supervisor.context import JobTransaction
    from supervisor.newjob import NewJob
    from supervisor.worker.run import Run

P = ParamSpec("P")

_MOST_ATTEMPTS: Final = 32_767
#: A job of an unknown kind is put back for about this long at first, times 0.5 to 1.5.
_UNKNOWN_S: Final = 1.0


def run(handler: BoundHandler[P], /, *args: P.args, **kwargs: P.kwargs) -> Ran:
    """Run a job of *handler* with these arguments, first attempt, with the options of `handler.at(...)`.

    The arguments are encoded, checked and decoded as on their way through the database. An `async def` handler
    runs in a loop of its own; in a test that is itself async, `await run_async(...)` runs it in the test's.

    Raises:
        InvalidJob: the arguments cannot be enqueued.
    """
    return run_job(handler.new_job(*args, **kwargs))


async def run_async(handler: BoundHandler[P], /, *args: P.args, **kwargs: P.kwargs) -> Ran:
    """As `run`, awaited."""
    return await run_job_async(handler.new_job(*args, **kwargs))


def run_job(job: NewJob, *, attempt: int = 1, cancel: bool = False) -> Ran:
    """Run *job*, which names its handler by kind: any attempt, any payload.

    Args:
        attempt: Which attempt it is; from the job's max_attempts on a failure is its death.
        cancel: Tell it to stop when it has begun, as an operator's cancel does: an `async def` handler is
            cancelled where it first waits, a plain one sees `job.cancelled`.
    """
    performance = _performance(job, attempt, cancel)
    performance.perform()
    return _foretold(performance, cancel)


async def run_job_async(job: NewJob, *, attempt: int = 1, cancel: bool = False) -> Ran:
    """As `run_job`, awaited."""
    performance = _performance(job, attempt, cancel)
    await performance.perform_async()
    return _foretold(performance, cancel)


def _performance(job: NewJob, attempt: int, cancel: bool) -> Performance:
    check_int("attempt", attempt, 1, _MOST_ATTEMPTS)
    now = time.time()
    claimed = ClaimedJob(
        id=0,
        token=1,
        kind=job.kind,
        queue=job.queue,
        priority=job.priority,
        payload=job.payload_json,
        headers=job.headers_json,
        attempt=attempt,
        max_attempts=job.max_attempts,
        crashes=0,
        suspect=False,
        timeout_s=job.timeout_s,
        created_at=now,
        run_at=now,
    )
    return Performance(claimed, _no_transaction, cancel=cancel)


def _no_transaction(run: Run) -> JobTransaction:
    raise RuntimeError(
        f"{run.job.kind} asks for job.transaction(), and this run has no database: enqueue it and use drain(conn)"
    )


def _foretold(performance: Performance, cancel: bool) -> Ran:
    run = performance.run
    item = settlement_of(run, Backoff())
    outcome: Outcome = item.outcome
    event, reason = Event(outcome.event), outcome.reason
    wait: tuple[float, float] | None = None
    if cancel and event is not Event.DONE:
        event, reason = Event.CANCEL, "operator"
    elif event is Event.FAILED and run.job.attempt >= run.job.max_attempts:
        event, reason = Event.EXHAUSTED, "attempts"
    status = apply(Status.RUNNING, event).to
    if status is Status.QUEUED:
        wait = _wait(outcome, run.job.attempt, Backoff(item.base_s, item.cap_s))
    return Ran(
        id=run.job.id,
        kind=run.job.kind,
        attempt=run.job.attempt,
        event=outcome.event,
        status=status.value,
        reason=reason,
        error=outcome.error,
        due_in_s=None if wait is None else sum(wait) / 2,
        due_between_s=wait,
        exception=performance.exception,
    )


def _wait(outcome: Outcome, attempt: int, backoff: Backoff) -> tuple[float, float]:
    if outcome.delay is not None:
        return outcome.delay, outcome.delay
    if outcome.event == "interrupted":
        return 0.0, 0.0
    middle: Any = _UNKNOWN_S if outcome.event == "unknown" else backoff.upper(attempt)
    return middle * 0.5, middle * 1.5
