"""What a handler may know about the run it is in.

A parameter annotated `Job` receives it; it is never part of the payload:

    @handler("report.build")
    def build(report_id: int, job: Job) -> None:
        for page in pages(report_id):
            job.raise_if_cancelled()
            ...

The worker makes one per run and gives it its services. Without services (a unit
test that calls a handler) a Job is never cancelled and has no transaction.

Elsewhere: the services (supervisor/worker); how a run's end is judged (outcome.py).
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from supervisor.db.enqueue import AsyncConn, SyncConn


class JobTransaction(Protocol):
    """A database transaction that finishes the job with the handler's own writes.

    Leaving it normally commits both; an exception rolls back both.
    """

    def __enter__(self) -> SyncConn: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...
    async def __aenter__(self) -> AsyncConn: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


class RunServices(Protocol):
    """What the worker does for a running job. Called from handler threads too."""

    def cancelled(self) -> bool:
        """Whether the run was told to stop: timeout, lost lease, operator, or drain deadline."""
        ...

    def transaction(self) -> JobTransaction:
        """A new transaction that finishes the job; the handler picks `with` or `async with`."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """The job a handler runs for.

    Attributes:
        id: The job's id.
        kind: The name it was enqueued by; may be an alias of the handler's.
        queue: Where it was queued.
        attempt: Which attempt this is; 1 is the first.
        max_attempts: After this many failures it is dead.
        crashes: How often a process died under it so far.
        created_at: When it was enqueued, by the database's clock.
        run_at: When it was due, by the database's clock.
        headers: What the producer put beside the payload.
        deadline: The time.monotonic() at which its timeout passes; None without a timeout.
        token: The fencing token of this run; it only grows from run to run.
    """

    id: int
    kind: str
    queue: str = "default"
    attempt: int = 1
    max_attempts: int = 20
    crashes: int = 0
    created_at: datetime | None = None
    run_at: datetime | None = None
    headers: Mapping[str, Any] = field(default_factory=dict, repr=False)
    deadline: float | None = None
    token: int = 0
    services: RunServices | None = field(default=None, repr=False)

    @property
    def cancelled(self) -> bool:
        """Whether this run was told to stop. A plain `def` handler looks here between steps."""
        return self.services is not None and self.services.cancelled()

    def raise_if_cancelled(self) -> None:
        """Leave the handler if this run was told to stop.

        Raises:
            asyncio.CancelledError: a BaseException, so that `except Exception` in a handler lets it pass.
        """
        if self.cancelled:
            raise CancelledError(f"job {self.id} was told to stop")

    def transaction(self) -> JobTransaction:
        """Finish the job in one transaction with the handler's own writes: their effect happens exactly once.

        ``async with job.transaction() as conn`` in an async handler, ``with`` in a plain one.

        Raises:
            LeaseLost: on leaving, when the job is no longer held by this run; everything is rolled back.
        """
        if self.services is None:
            raise RuntimeError(f"job {self.id} runs outside a worker: there is no transaction to finish it in")
        return self.services.transaction()
