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

import math
from asyncio import CancelledError
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from supervisor.db.enqueue import AsyncConn, SyncConn


MAX_NOTE_CHARS: Final = 200
_ROUNDING: Final = 1e-6


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

    def progress(self, share: float, note: str | None) -> None:
        """Keep it, to be stored soon; never waits."""
        ...

    def set_result(self, value: object) -> None:
        """Keep *value* as the run's result."""
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

    def progress(self, share: float, note: str | None = None) -> None:
        """Say how far this run has come: *share* of it, 0..1, with a *note* for people.

        Costs nothing to speak of, never waits, and may be called as often as one likes, from threads too: the
        last word is stored once a second at most. It is shown while the job runs (`supervisor jobs show`, the
        dashboard, the view `jobs`).

        Raises:
            ValueError: *share* is not a number of 0..1. A note is cut at 200 characters.
        """
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise ValueError(f"progress must be a number of 0..1, not {type(share).__name__}")
        if not math.isfinite(share) or not -_ROUNDING <= share <= 1 + _ROUNDING:
            raise ValueError(f"progress must be a number of 0..1, not {share!r}")
        if note is not None:
            note = str(note).replace("\0", "").encode("utf-8", "replace").decode()
            note = note if len(note) <= MAX_NOTE_CHARS else note[: MAX_NOTE_CHARS - 3] + "..."
        if self.services is not None:
            self.services.progress(min(1.0, max(0.0, float(share))), note)

    def set_result(self, value: object) -> None:
        """Make *value* the result of this run, for a handler that finishes in `job.transaction()`.

        That transaction ends before the handler returns, so what it returns then comes too late. Elsewhere it is
        the result when the handler returns None. Call it before the transaction ends; the last call counts.

        Raises:
            InvalidResult: the handler has no `result_for`, or the value cannot be stored.
        """
        if self.services is not None:
            self.services.set_result(value)
