"""A job's life, as data: which status takes which event, and what the move changes.

    queued --claim--> running --done-----------------------------> done
      ^                  |------failed, snoozed, released, crashed,
      |                  |      suspect, reaped, unknown, ... ---> queued
      |                  |------exhausted, dead, crashed_out, ... -> dead
      |                  '------cancel (queued too) --------------> cancelled
      '------------------------ retry (an operator's word) <------- dead, cancelled

Always true: everything that may change a status is in TRANSITIONS, and an event
that a status does not know is an error that names both. Attempts are the
handler's failures, crashes are deaths of the process under it: no move counts both.

Elsewhere: the same moves in SQL (supervisor/db), held against this table by the
tests; what a handler's ending becomes (outcome.py); how late "later" is
(backoff.py). A run_at in the future is still `queued`: "scheduled" is a label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from supervisor.errors import IllegalMove


class Status(StrEnum):
    """Where a job is. A job is in one of these at any time."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Event(StrEnum):
    """What can happen to a job."""

    CLAIM = "claim"
    DONE = "done"
    FAILED = "failed"
    EXHAUSTED = "exhausted"  # failed, and it was the last attempt
    DEAD = "dead"  # Cancel(), or a payload that does not fit
    SNOOZED = "snoozed"
    RELEASED = "released"  # never started, or a neighbour of another job's kill
    INTERRUPTED = "interrupted"  # cut at the drain deadline: the deploy's doing, not the job's
    CRASHED = "crashed"  # its process died and it ran alone
    CRASHED_OUT = "crashed_out"  # crashed, and it was the last allowed
    SUSPECT = "suspect"  # its process died and several ran
    REAPED = "reaped"  # its lease passed: parent or node lost
    REAPED_OUT = "reaped_out"  # reaped, and it was the last allowed crash
    UNKNOWN = "unknown"  # this worker has no handler for its kind
    UNKNOWN_OUT = "unknown_out"  # unknown, and no worker has known it for too long
    CANCEL = "cancel"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class Move:
    """What an event does to a job.

    Attributes:
        to: The status afterwards.
        attempts: Added to the attempts.
        crashes: Added to the crashes.
        suspect: The mark "runs alone next" afterwards; None leaves it as it is.
        later: run_at moves into the future. Otherwise the job keeps its place.
        reset: Attempts and crashes start anew, at 0.
    """

    to: Status
    attempts: int = 0
    crashes: int = 0
    suspect: bool | None = None
    later: bool = False
    reset: bool = False


#: What a run may report to the database. It turns `failed` into `exhausted`, `crashed`
#: into `crashed_out` and `unknown` into `unknown_out` itself: only it knows the counts.
SETTLE_EVENTS: Final[frozenset[Event]] = frozenset(
    {
        Event.DONE,
        Event.FAILED,
        Event.DEAD,
        Event.SNOOZED,
        Event.RELEASED,
        Event.INTERRUPTED,
        Event.CRASHED,
        Event.SUSPECT,
        Event.UNKNOWN,
    }
)

TRANSITIONS: Final[Mapping[tuple[Status, Event], Move]] = MappingProxyType(
    {
        (Status.QUEUED, Event.CLAIM): Move(Status.RUNNING, attempts=+1),
        (Status.QUEUED, Event.CANCEL): Move(Status.CANCELLED),
        (Status.RUNNING, Event.DONE): Move(Status.DONE),
        # The handler came back without killing its worker: it is no suspect.
        (Status.RUNNING, Event.FAILED): Move(Status.QUEUED, suspect=False, later=True),
        (Status.RUNNING, Event.EXHAUSTED): Move(Status.DEAD),
        (Status.RUNNING, Event.DEAD): Move(Status.DEAD),
        (Status.RUNNING, Event.SNOOZED): Move(Status.QUEUED, attempts=-1, suspect=False, later=True),
        (Status.RUNNING, Event.RELEASED): Move(Status.QUEUED, attempts=-1),
        (Status.RUNNING, Event.INTERRUPTED): Move(Status.QUEUED, attempts=-1),
        (Status.RUNNING, Event.CRASHED): Move(Status.QUEUED, attempts=-1, crashes=+1, later=True),
        (Status.RUNNING, Event.CRASHED_OUT): Move(Status.DEAD, attempts=-1, crashes=+1),
        (Status.RUNNING, Event.SUSPECT): Move(Status.QUEUED, attempts=-1, suspect=True),
        (Status.RUNNING, Event.REAPED): Move(Status.QUEUED, attempts=-1, crashes=+1, later=True),
        (Status.RUNNING, Event.REAPED_OUT): Move(Status.DEAD, attempts=-1, crashes=+1),
        (Status.RUNNING, Event.UNKNOWN): Move(Status.QUEUED, attempts=-1, later=True),
        (Status.RUNNING, Event.UNKNOWN_OUT): Move(Status.DEAD, attempts=-1),
        (Status.RUNNING, Event.CANCEL): Move(Status.CANCELLED),
        (Status.DEAD, Event.RETRY): Move(Status.QUEUED, suspect=False, reset=True),
        (Status.CANCELLED, Event.RETRY): Move(Status.QUEUED, suspect=False, reset=True),
    }
)


def apply(status: Status, event: Event) -> Move:
    """The move that *event* makes from *status*.

    Raises:
        IllegalMove: The status does not know the event.
    """
    move = TRANSITIONS.get((status, event))
    if move is None:
        raise IllegalMove(status, event, [known for start, known in TRANSITIONS if start == status])
    return move
