"""Calling a handler: what it is given, what stands around the call, and how its end is judged.

    call_async, in a task of its own   --.
    call_sync, in a thread of its own  --+--> log fields, span, handler, outcome, scoreboard

Always true: whatever a handler raises, SystemExit included, is that job's outcome, and nothing leaves a call. The
end is on the scoreboard before anything else happens; of a plain handler from its thread: the loop may be blocked,
and a death before it wakes must not charge the job. A call runs in context variables of its own (the caller sees
to that) and binds the job's there.

Elsewhere: when and where a job starts (executor.py); what its Job can do (run.py); spans (tracing.py).
"""

import asyncio
import json
import time
from datetime import UTC, datetime
from typing import Any

from supervisor import context
from supervisor.db.jobs import ClaimedJob
from supervisor.errors import LeaseLost
from supervisor.handler import Handler, Job
from supervisor.log import bind
from supervisor.outcome import Outcome
from supervisor.wire.board import Board
from supervisor.worker.run import Run, RunServices, TransactionDesk
from supervisor.worker.tracing import NO_SPAN, Traces


def job_of(job: ClaimedJob, deadline: float | None, services: context.RunServices) -> Job:
    """What a handler is given of a claimed job."""
    return Job(
        id=job.id,
        kind=job.kind,
        queue=job.queue,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        crashes=job.crashes,
        created_at=datetime.fromtimestamp(job.created_at, UTC),
        run_at=datetime.fromtimestamp(job.run_at, UTC),
        headers=json.loads(job.headers) if job.headers != "{}" else {},
        deadline=deadline,
        token=job.token,
        services=services,
    )


class Calls:
    """The calls of one worker."""

    def __init__(self, board: Board, desk: TransactionDesk, traces: Traces) -> None:
        self._board = board
        self._desk = desk
        self._traces = traces

    def context(self, run: Run, deadline: float | None) -> Job:
        """What the handler may know of this run; to be made only for handlers that ask for it."""
        return job_of(run.job, deadline, RunServices(run, self._desk))

    async def call_async(self, run: Run, handler: Handler[Any]) -> None:
        """Call an `async def` handler; afterwards run.outcome is set."""
        span = NO_SPAN
        try:
            bind(run.log_fields)
            span = self._traces.begin(run)
            arguments = handler.bind(run.job.payload, run.context)
            outcome = run.returned(await handler.fn(**arguments))
        except BaseException as error:
            outcome = judge(run, error)
            span.raised(error)
        self._ended(run, outcome)
        span.end(outcome)

    def call_sync(self, run: Run, handler: Handler[Any]) -> None:
        """Call a plain handler; afterwards run.outcome is set."""
        span = NO_SPAN
        try:
            bind(run.log_fields)
            span = self._traces.begin(run)
            arguments = handler.bind(run.job.payload, run.context)
            outcome = run.returned(handler.fn(**arguments))
        except BaseException as error:
            outcome = judge(run, error)
            span.raised(error)
        self._ended(run, outcome)
        span.end(outcome)

    def never_called(self, run: Run) -> None:
        """A task that is cancelled before its first step ends without having run a line of `call_async`."""
        self._ended(run, judge(run, asyncio.CancelledError()))

    def _ended(self, run: Run, outcome: Outcome) -> None:
        run.ended = time.monotonic()
        run.outcome = outcome
        self._board.return_(run.entry, outcome.event, outcome.error, outcome.delay, outcome.reason)


def judge(run: Run, error: BaseException) -> Outcome:
    """What *error*, raised by the handler, means: whoever told it to stop knows better than the error says."""
    if run.cut == "timeout":
        timeout = run.job.timeout_s if run.job.timeout_s is not None else run.handler and run.handler.timeout
        return Outcome.timed_out(timeout or 0.0)
    if run.cut == "drain":
        return Outcome("interrupted", "interrupted: told to stop before its worker left", reason="interrupted")
    if isinstance(error, LeaseLost):
        # Its transaction is undone. If only the session moved meanwhile, the job is still ours to put back.
        return Outcome("interrupted", reason="lease_lost")
    return Outcome.from_exception(error)
