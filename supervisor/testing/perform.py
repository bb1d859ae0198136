"""Running one handler as a worker would, without the worker.

The payload is decoded, the timeout counts, and how it ended is judged by the worker's own rules. What differs: a
plain handler runs in the caller's thread (in a drain on an async connection, in a thread of its own), and there
is no scoreboard, no lease and nobody who kills what ignores its timeout.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisor.errors import UnknownKind
from supervisor.handler import Handler, registry
from supervisor.outcome import Outcome
from supervisor.worker.calls import job_of, judge
from supervisor.worker.run import Run

if TYPE_CHECKING:
    from supervisor.context import JobTransaction
    from supervisor.db.jobs import ClaimedJob


@dataclass(slots=True)
class Services:
    """What the handler's Job asks for."""

    run: Run
    timeout: float | None
    open_transaction: Callable[[Run], JobTransaction]

    def cancelled(self) -> bool:
        """Whether the run was told to stop; a plain handler's timeout passes while nobody watches."""
        if self.timeout is not None and time.monotonic() >= self.run.started + self.timeout:
            self.run.stop("timeout")
        return self.run.cut is not None

    def transaction(self) -> JobTransaction:
        """What the surroundings of the run give."""
        return self.open_transaction(self.run)

    def progress(self, share: float, note: str | None) -> None:
        """Nobody looks."""

    def set_result(self, value: object) -> None:
        """Checked as in a worker."""
        self.run.set_result(value)


class Performance:
    """One run: `handler` is set when its kind is known, `outcome` of the run when it has ended.

    Args:
        cancel: Tell it to stop as soon as it has begun.
        open_transaction: What `job.transaction()` gives.
    """

    def __init__(
        self, job: ClaimedJob, open_transaction: Callable[[Run], JobTransaction], *, cancel: bool = False
    ) -> None:
        self.run = Run(job, 0)
        self.exception: BaseException | None = None
        self._cancel = cancel
        self._open_transaction = open_transaction
        self._timeout: float | None = None

    def perform(self) -> None:
        """Run it now; an `async def` handler in a loop of its own."""
        handler = self._prepare()
        if handler is None:
            return
        if not handler.is_async:
            self._call(handler)
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(self._await(handler))
            return
        # A loop runs in this thread and waits for us: the handler's own loop goes into another one.
        thread = threading.Thread(target=lambda: asyncio.run(self._await(handler)), name="handler")
        thread.start()
        thread.join()

    async def perform_async(self) -> None:
        """Run it, awaited; a plain handler in a thread."""
        handler = self._prepare()
        if handler is None:
            return
        if handler.is_async:
            await self._await(handler)
        else:
            await asyncio.to_thread(self._call, handler)

    def _prepare(self) -> Handler[Any] | None:
        run, job = self.run, self.run.job
        handler = registry().get(job.kind)
        run.started = time.monotonic()
        if handler is None:
            self._ended(UnknownKind(job.kind))
            return None
        run.handler = handler
        self._timeout = job.timeout_s if job.timeout_s is not None else handler.timeout
        deadline = None if self._timeout is None else run.started + self._timeout
        run.context = job_of(job, deadline, Services(run, self._timeout, self._open_transaction))
        return handler

    def _call(self, handler: Handler[Any]) -> None:
        try:
            arguments = handler.bind(self.run.job.payload, self.run.context)
            if self._cancel:
                self.run.stop("cancel")
            self.run.returned(handler.fn(**arguments))  # what cannot be kept is refused as in a worker
        except BaseException as error:
            if self.run.context is not None:
                _ = self.run.context.cancelled  # the timeout may have passed
            self._ended(error)
            if isinstance(error, KeyboardInterrupt):  # of whoever runs the tests
                raise
        else:
            self._ended(None)

    async def _await(self, handler: Handler[Any]) -> None:
        loop = asyncio.get_running_loop()
        run = self.run

        async def body() -> None:
            try:
                run.returned(await handler.fn(**handler.bind(run.job.payload, run.context)))
            except BaseException as error:
                self._ended(error)
            else:
                self._ended(None)

        run.task = task = loop.create_task(body())
        timer = None if self._timeout is None else loop.call_later(self._timeout, run.stop, "timeout")
        if self._cancel:
            loop.call_soon(run.stop, "cancel")  # after the first step
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()  # when the caller is cancelled
            if timer is not None:
                timer.cancel()

    def _ended(self, error: BaseException | None) -> None:
        self.run.ended = time.monotonic()
        self.exception = error
        self.run.outcome = Outcome.done() if error is None else judge(self.run, error)
