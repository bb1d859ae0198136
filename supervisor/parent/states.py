"""The life of a worker process, as data.

    starting --ready--> ready --drain--> draining --gone--> exited
        |                 |                 |
        '------ gone -----+---- kill -------+--> killed --gone--> exited

and what to do when one is gone, by its exit code and by who ended it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from supervisor import exits


class State(StrEnum):
    """Where a worker process is."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    KILLED = "killed"
    EXITED = "exited"


class Happened(StrEnum):
    """What can happen to it."""

    READY = "ready"
    DRAIN = "drain"
    KILL = "kill"
    GONE = "gone"


NEXT: Final[Mapping[tuple[State, Happened], State]] = {
    (State.STARTING, Happened.READY): State.READY,
    (State.STARTING, Happened.DRAIN): State.DRAINING,
    (State.STARTING, Happened.KILL): State.KILLED,
    (State.STARTING, Happened.GONE): State.EXITED,
    (State.READY, Happened.READY): State.READY,
    (State.READY, Happened.DRAIN): State.DRAINING,
    (State.READY, Happened.KILL): State.KILLED,
    (State.READY, Happened.GONE): State.EXITED,
    (State.DRAINING, Happened.READY): State.DRAINING,  # said before it heard of the drain
    (State.DRAINING, Happened.DRAIN): State.DRAINING,
    (State.DRAINING, Happened.KILL): State.KILLED,
    (State.DRAINING, Happened.GONE): State.EXITED,
    (State.KILLED, Happened.READY): State.KILLED,
    (State.KILLED, Happened.DRAIN): State.KILLED,
    (State.KILLED, Happened.KILL): State.KILLED,
    (State.KILLED, Happened.GONE): State.EXITED,
}


class Restart(StrEnum):
    """What a death asks for."""

    STOP_SERVICE = "stop_service"  # it would only fail again
    AT_ONCE = "at_once"  # it was meant to go
    WITHIN_BUDGET = "within_budget"  # a crash: at once while the budget lasts, then with backoff


def restart(code: int | None, caused: str | None, *, orderly: bool = True) -> Restart:
    """What to do about a worker that ended with exit *code* (negative: a signal), ended by *caused*.

    *orderly*: it left by itself, so the code is one of ours; else a handler may have called os._exit with it.
    """
    if not orderly and caused is None:
        return Restart.WITHIN_BUDGET
    if code == exits.CONFIG and orderly:
        return Restart.STOP_SERVICE
    if caused in ("deadline", "cancel", "recycle", "drain", "fence") or code in (exits.OK, exits.CUT):
        return Restart.AT_ONCE
    return Restart.WITHIN_BUDGET
