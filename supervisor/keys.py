"""What makes a job wait for others, or keeps others away: its keys, limits and parents, checked.

    given by name --check_more--> as enqueue_many takes it: seconds, states, ids; what was not given is not there

Always true: what passes here is stored as it is; only whether the parents are known is the database's to say. A key
and what belongs to it are given together or not at all. No check touches the database.

Elsewhere: the job (newjob.py); the same checks for SQL (options_problem in functions/030_enqueue.sql); what comes of
it (docs/enqueue.md, docs/order.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, overload

from supervisor.errors import InvalidJob
from supervisor.payload import check_key

if TYPE_CHECKING:
    from supervisor.results import AsyncSource, SyncSource

Seconds: TypeAlias = "timedelta | float"
OnDead: TypeAlias = Literal["next", "hold"]
AfterFailed: TypeAlias = Literal["hold", "cancel", "run"]
State: TypeAlias = Literal["queued", "running", "done", "dead", "cancelled"]

MAX_DELAY_S: Final = 3_660 * 86_400.0
MAX_CONCURRENCY: Final = 10_000
MAX_RATE: Final = 1_000_000
MIN_RATE_PERIOD_S: Final = 1.0
MAX_RATE_PERIOD_S: Final = 366 * 86_400.0
MIN_RATE_STEP_S: Final = 0.02
MAX_PARENTS: Final = 1_000
_MAX_ID: Final = 2**63 - 1
_LIVING: Final = ("queued", "running")
_STATES: Final = (*_LIVING, "done", "dead", "cancelled")


_waiter: Callable[..., Any] | None = None


def install_waiter(waiter: Callable[..., Any]) -> None:
    """Give answers of enqueues their `.result`. Called once by results.py, which is above this."""
    global _waiter
    _waiter = waiter


class Enqueued(NamedTuple):
    """The answer to an enqueue.

    Attributes:
        id: The job that stands for the call.
        created: False when another job held the unique key already; *id* is that job.
    """

    id: int
    created: bool

    @overload
    def result(self, source: SyncSource, *, timeout: float | None = None, schema: str | None = None) -> Any: ...
    @overload
    def result(
        self, source: AsyncSource, *, timeout: float | None = None, schema: str | None = None
    ) -> Coroutine[Any, Any, Any]: ...
    def result(
        self, source: SyncSource | AsyncSource, *, timeout: float | None = None, schema: str | None = None
    ) -> Any:
        """What the job returned, waited for over *source*, *timeout* seconds at most: `supervisor.result_of`."""
        if _waiter is None:
            raise RuntimeError("import supervisor, not only supervisor.keys: the client is not loaded")
        return _waiter(source, self, timeout=timeout, schema=schema)


class EnqueuedBatch(NamedTuple):
    """The answer to a batch.

    Attributes:
        jobs: Its jobs, in their order.
        then: The job that runs when all of them have ended.
    """

    jobs: list[Enqueued]
    then: Enqueued


#: The options that a plain job has none of.
MORE: Final = (
    "unique_for", "unique_states", "ordering_key", "on_dead", "concurrency_key", "concurrency_limit",
    "rate_key", "rate_limit", "rate_period", "after", "after_failed",
)  # fmt: skip

#: Which of them a handler may have for its jobs although the key is given by some only: the key they belong to.
BELONGS: Final[Mapping[str, str]] = {
    "unique_for": "unique_key",
    "unique_states": "unique_key",
    "on_dead": "ordering_key",
    "concurrency_limit": "concurrency_key",
    "rate_limit": "rate_key",
    "rate_period": "rate_key",
}


def check_more(given: Mapping[str, Any], unique_key: str | None) -> dict[str, Any]:
    """Those of MORE that were *given*, checked, as enqueue_many takes them: seconds, states, ids.

    Raises:
        InvalidJob: with the field that cannot be stored, or is missing beside another.
    """
    made = check_each(given)
    if not made:
        return made
    for name, key in BELONGS.items():
        if name in made and (unique_key if key == "unique_key" else made.get(key)) is None:
            raise InvalidJob(key, f"must be given with {name}")
    for key, needed in _TOGETHER:
        if key in made and needed not in made:
            raise InvalidJob(needed, f"must be given with {key}")
    ended = [state for state in made.get("unique_states", ()) if state not in _LIVING]
    if ended and "unique_for" not in made:
        raise InvalidJob("unique_for", f"must be given with {ended[0]!r} in unique_states: nothing is held for ever")
    if made.get("after") == []:
        del made["after"]
    return made


def check_each(given: Mapping[str, Any]) -> dict[str, Any]:
    """As `check_more`, without what must be given together: for what is chosen by parts."""
    made = {name: value for name, value in given.items() if value is not None}
    made.update({name: check_key(name, made[name]) for name in _KEYS if name in made})
    made.update({name: _checked(name, made[name]) for name in _CHECKS if name in made})
    if "rate_limit" in made and "rate_period" in made and made["rate_period"] / made["rate_limit"] < MIN_RATE_STEP_S:
        found = f"{made['rate_limit']} in {made['rate_period']:g} s"
        raise InvalidJob("rate_limit", f"is {found}, must be one per 20 ms or less")
    return made


def that_belong(own: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """What of a handler's *own* options goes with the keys that it has itself or that were *chosen* for a job."""
    keys = {**own, **chosen}
    return {name: value for name, value in own.items() if name not in BELONGS or keys.get(BELONGS[name]) is not None}


_TOGETHER: Final = (
    ("concurrency_key", "concurrency_limit"),
    ("rate_key", "rate_limit"),
    ("rate_key", "rate_period"),
)
_KEYS: Final = ("ordering_key", "concurrency_key", "rate_key")
_CHECKS: Final = tuple(name for name in MORE if name not in _KEYS)


def _checked(name: str, value: Any) -> Any:
    """One of MORE that is no key."""
    if name in _WORDS:
        if value not in _WORDS[name]:
            *others, last = _WORDS[name]
            raise InvalidJob(name, f"must be {', '.join(map(repr, others))} or {last!r}")
        return value
    if name == "unique_for":
        return check_seconds(name, value, MAX_DELAY_S)
    if name == "rate_period":
        seconds = check_seconds(name, value, MAX_RATE_PERIOD_S)
        if seconds < MIN_RATE_PERIOD_S:
            raise InvalidJob(name, f"must be at least {MIN_RATE_PERIOD_S:g} second")
        return seconds
    if name == "unique_states":
        return _states(value)
    if name == "after":
        return parents(value)
    return check_int(name, value, 1, MAX_CONCURRENCY if name == "concurrency_limit" else MAX_RATE)


_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "on_dead": ("next", "hold"),
    "after_failed": ("hold", "cancel", "run"),
}


def _states(value: object) -> list[str]:
    listed = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else []
    if not listed or not all(state in _STATES for state in listed):
        raise InvalidJob("unique_states", f"must be one or more of {', '.join(_STATES)}")
    return list(dict.fromkeys(listed))


def parents(value: object, most: int | None = MAX_PARENTS) -> list[int]:
    """The ids of *value*, answers of enqueues or ids, each once; at most *most*."""
    if isinstance(value, str | Enqueued) or not isinstance(value, Iterable):
        raise InvalidJob("after", f"must be several jobs, as in after=[job], not {type(value).__name__}")
    ids: dict[int, None] = {}
    for one in value:
        ids[check_int("after", one.id if isinstance(one, Enqueued) else one, 1, _MAX_ID)] = None
    if most is not None and len(ids) > most:
        raise InvalidJob("after", f"has {len(ids)} jobs, the limit is {most}: use enqueue_batch")
    return list(ids)


def check_int(name: str, value: object, least: int, most: int) -> int:
    """*value* as a whole number between *least* and *most*."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidJob(name, f"must be a whole number, not {type(value).__name__}")
    if not least <= value <= most:
        raise InvalidJob(name, f"must be between {least} and {most}")
    return value


def check_seconds(name: str, value: object, most: float, *, zero: bool = False) -> float:
    """*value*, seconds or a timedelta, as seconds up to *most*; 0 only where *zero* says so."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidJob(name, f"must be seconds or a timedelta, not {type(value).__name__}")
    if not math.isfinite(seconds) or seconds > most or seconds < 0 or (seconds == 0 and not zero):
        raise InvalidJob(name, f"must be {'0 or more' if zero else 'more than 0'} and at most {most:,.0f} seconds")
    return float(seconds)
