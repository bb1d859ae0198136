"""What became of one run."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How one run of a handler ended, and what its job became.

    Attributes:
        id: The job's; 0 for one that is in no database.
        kind: The handler's name in the job.
        attempt: Which attempt it was.
        event: How the run ended: done, failed, snoozed, dead (Cancel, or a payload that does not fit), unknown
            (no handler of that kind is imported), interrupted.
        status: What the job is now: done, queued (it runs again), dead, cancelled.
        reason: A word: error, retry, timeout, cancel, payload, unknown_kind; for a dead job that is out of
            attempts, attempts. None when nothing went wrong.
        error: The text that is stored as the job's error.
        due_in_s: Seconds until it runs again; None unless queued. Of a wait that is spread by chance `run`
            gives the middle, `drain` what came out.
        due_between_s: The least and the most that wait can be, in seconds; None unless queued.
        exception: What the handler raised; to see it whole, raise it.
    """

    id: int
    kind: str
    attempt: int
    event: str
    status: str
    reason: str | None = None
    error: str | None = None
    due_in_s: float | None = None
    due_between_s: tuple[float, float] | None = None
    exception: BaseException | None = field(default=None, repr=False, compare=False)
