"""One job on its way through a worker, and what its handler can ask for.

    claimed -> (backlog) -> started -> returned -> settled
                   |            |
                   +-> released +-> told to stop: timeout, drain, cancel, lease

Always true: a run is told to stop at most once, and the first reason stands. A run whose lease was lost
writes nothing more. A run that finished in its handler's own transaction is not acknowledged again.

Elsewhere: starting and stopping (executor.py); the writes (results.py).
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from supervisor.db.jobs import Ack, ClaimedJob
from supervisor.db.pools import HandlerPools
from supervisor.db.transaction import finish, finish_sync
from supervisor.errors import InvalidResult, LeaseLost
from supervisor.handler import Handler, Job
from supervisor.outcome import Outcome


class Run:
    """A claimed job, from the claim's answer to the settled result."""

    __slots__ = (
        "context",
        "cut",
        "ended",
        "entry",
        "finished",
        "finishing",
        "handler",
        "job",
        "lost",
        "outcome",
        "result",
        "started",
        "task",
        "timer",
        "too_late",
        "unsure",
    )

    def __init__(self, job: ClaimedJob, entry: int) -> None:
        self.job = job
        self.entry = entry
        """Its slot on the scoreboard."""
        self.handler: Handler[Any] | None = None
        self.context: Job | None = None
        self.task: asyncio.Future[Any] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.started = 0.0
        self.ended = 0.0
        self.outcome: Outcome | None = None
        self.result: str | None = None
        """What its handler returned, or has set: JSON text to be kept with its end."""
        self.cut: str | None = None
        """Why it was told to stop: timeout, drain, cancel or lease."""
        self.lost = False
        """Its lease is gone: whatever it returns is dropped."""
        self.finished = False
        """Its handler's own transaction has acknowledged it."""
        self.finishing = False
        """Its handler's own transaction is about to."""
        self.unsure = False
        """It was told to, and whether it did is not known: the answer to the commit was lost."""
        self.too_late = False
        """Its handler returned something to be kept after its own transaction had ended the run without it."""

    def log_fields(self) -> dict[str, Any]:
        """What each log line about this run carries, and each that its handler writes."""
        job = self.job
        return {"job_id": job.id, "kind": job.kind, "queue": job.queue, "attempt": job.attempt}

    def ack(self) -> Ack:
        """Its acknowledgement."""
        took_s = max(0.0, (self.ended or time.monotonic()) - self.started)
        return Ack(self.job.id, self.job.token, took_s, self.job.tid)

    def set_result(self, value: object) -> None:
        """Make *value* its result. Raises InvalidResult."""
        if self.handler is None or self.handler.returns is None:
            raise InvalidResult(self.job.kind, "its handler keeps none: declare it with result_for")
        self.result = self.handler.returns.encode(value)

    def returned(self, value: object) -> Outcome:
        """Its handler came back with *value*: keep that where it is to be kept. Raises InvalidResult."""
        if self.handler is None or self.handler.returns is None:
            return Outcome.done()
        if self.finished:
            if value is not None and self.result is None:
                self.too_late = True
            return Outcome.done()
        if value is not None or self.result is None:
            self.set_result(value)
        return Outcome.kept()

    def kept(self) -> tuple[str | None, float]:
        """What is to be kept of it, and for how long in seconds; None: nothing is."""
        if self.handler is None or self.handler.returns is None:
            return None, 0.0
        return self.result if self.result is not None else "null", self.handler.returns.kept_s

    def stop(self, why: str) -> bool:
        """Tell the handler to stop, once. An async one is cancelled; a sync one sees job.cancelled."""
        if self.cut is not None or self.outcome is not None:
            return False
        self.cut = why
        if self.handler is not None and self.handler.is_async and self.task is not None:
            self.task.cancel()
        return True


@dataclass(frozen=True, slots=True)
class TransactionDesk:
    """What runs need to open transactions: the pools, and the session as it is at that moment."""

    pools: HandlerPools
    schema: str
    keep: int
    session: Callable[[], int]
    say: Callable[[Run, float, str | None], None]
    """Keep what a run says of its progress."""


class RunServices:
    """What a handler's Job asks of the worker that runs it."""

    __slots__ = ("_desk", "_run")

    def __init__(self, run: Run, desk: TransactionDesk) -> None:
        self._run = run
        self._desk = desk

    def cancelled(self) -> bool:
        """Whether the run was told to stop."""
        return self._run.cut is not None

    def transaction(self) -> "FinishingTransaction":
        """A transaction that commits the handler's writes and the job's end together, or neither."""
        return FinishingTransaction(self._run, self._desk)

    def progress(self, share: float, note: str | None) -> None:
        """Keep it; it is stored within about a second."""
        self._desk.say(self._run, share, note)

    def set_result(self, value: object) -> None:
        """Keep *value* as the run's result."""
        self._run.set_result(value)


class FinishingTransaction:
    """A transaction on a pooled connection whose last statement acknowledges the job, fenced.

    LeaseLost where that did not count; whatever else went wrong, nothing of it is committed.
    """

    def __init__(self, run: Run, desk: TransactionDesk) -> None:
        self._run = run
        self._desk = desk
        self._conn: Any = None
        self._stack: Any = None

    async def __aenter__(self) -> Any:
        self._stack = AsyncExitStack()
        try:
            self._conn = await self._stack.enter_async_context(self._desk.pools.connection())
            await self._stack.enter_async_context(self._conn.transaction())
        except BaseException:
            await self._stack.aclose()
            raise
        return self._conn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        desk, run = self._desk, self._run
        acknowledged = False
        run.finishing = error is None
        try:
            async with self._stack.pop_all() as stack:
                if error is not None:
                    return bool(await stack.__aexit__(kind, error, trace))
                if run.lost or not await finish(
                    self._conn, desk.schema, desk.session(), run.ack(), desk.keep, *run.kept()
                ):
                    raise LeaseLost(run.job.id)
                acknowledged = True
            run.finished = True
        finally:
            run.finishing = False
            run.unsure = acknowledged and not run.finished
        return None

    def __enter__(self) -> Any:
        self._stack = ExitStack()
        try:
            self._conn = self._stack.enter_context(self._desk.pools.sync_pool().connection())
            self._stack.enter_context(self._conn.transaction())
        except BaseException:
            self._stack.close()
            raise
        return self._conn

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        desk, run = self._desk, self._run
        acknowledged = False
        run.finishing = error is None
        try:
            with self._stack.pop_all() as stack:
                if error is not None:
                    return bool(stack.__exit__(kind, error, trace))
                if run.lost or not finish_sync(
                    self._conn, desk.schema, desk.session(), run.ack(), desk.keep, *run.kept()
                ):
                    raise LeaseLost(run.job.id)
                acknowledged = True
            run.finished = True
        finally:
            run.finishing = False
            run.unsure = acknowledged and not run.finished
        return None
