"""A job before it is stored: its options, each checked, and its payload as JSON text.

    handler.enqueue(...)  --.
    enqueue(kind, {...})  --+--> NewJob --> one row, or one element of a bulk
    NewJob(kind, {...})   --'
    handler.enqueue_many(...)  ------> Alike: one NewJob and many payloads

Always true: a NewJob that exists can be stored: names, numbers, times and JSON
were checked when it was made, so no statement fails for its sake. The checks
never touch the database.

Elsewhere: what JSON and names may be (payload.py); keys, limits and parents (keys.py); sending it (client.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias, TypedDict, overload

from supervisor.columns import Columns
from supervisor.errors import InvalidJob
from supervisor.keys import (
    MAX_DELAY_S,
    MORE,
    AfterFailed,
    Enqueued,
    OnDead,
    Seconds,
    State,
    check_int,
    check_more,
    check_seconds,
)
from supervisor.payload import EMPTY, JsonText, check_json, check_key, check_name, encode, encode_headers

OnConflict: TypeAlias = Literal["skip", "replace", "raise"]

DEFAULT_QUEUE: Final = "default"
DEFAULT_MAX_ATTEMPTS: Final = 20
DEFAULT_MAX_CRASHES: Final = 3

#: Limits of the options, in their own units.
MIN_PRIORITY: Final = -100
MAX_PRIORITY: Final = 100
MAX_TRIES: Final = 32_767
MAX_TIMEOUT_S: Final = 366 * 86_400.0
_LATEST: Final = datetime(9999, 12, 31, tzinfo=UTC)  # what every time zone can show; the table's bound too


class JobOptions(TypedDict, total=False):
    """What may be chosen for one job. None, or nothing, leaves the handler's or the usual value.

    queue, unique_key: texts. priority: -100..100, smaller runs sooner. run_at: an aware datetime,
    or in_: seconds or a timedelta from now; a past time means now. max_attempts, max_crashes: 1 or
    more. timeout: seconds or a timedelta. headers: a mapping kept beside the payload.
    unique_states: the states in which a job has its unique_key, of queued, running, done, dead and
    cancelled; the first two if not given, with unique_for the first three. unique_for: seconds or a
    timedelta, from the enqueue, for which an ended job has it.

    Jobs with these wait their turn without being in others' way (docs/order.md): ordering_key: one at a
    time, in the order they were enqueued; on_dead: "next", or "hold" those behind a dead one.
    concurrency_key and concurrency_limit: so many at a time. rate_key, rate_limit and rate_period, in
    seconds or as a timedelta: so many starts in a period, evenly; one per 20 ms at most. after: answers
    of enqueues, or ids, of up to 1,000 jobs that must be done first; after_failed: what when one of them
    is dead or cancelled: "hold" (wait for its retry), "cancel" or "run".
    """

    queue: str | None
    priority: int | None
    run_at: datetime | None
    in_: Seconds | None
    max_attempts: int | None
    max_crashes: int | None
    timeout: Seconds | None
    unique_key: str | None
    headers: Mapping[str, Any] | None
    unique_for: Seconds | None
    unique_states: Iterable[State] | None
    ordering_key: str | None
    on_dead: OnDead | None
    concurrency_key: str | None
    concurrency_limit: int | None
    rate_key: str | None
    rate_limit: int | None
    rate_period: Seconds | None
    after: Iterable[Enqueued | int] | None
    after_failed: AfterFailed | None


class EnqueueOptions(JobOptions, total=False):
    """JobOptions, and how to send it.

    on_conflict: what happens when another job holds the unique key: "skip" keeps that job, "replace"
    gives a queued one the new content (a running or ended one is kept), "raise" raises UniqueConflict.
    schema: where the queue lives; SUPERVISOR_SCHEMA or "supervisor" when not given.
    """

    on_conflict: OnConflict | None
    schema: str | None


@dataclass(frozen=True, slots=True)
class NewJob:
    """One job to be stored; checked when made.

    Args:
        kind: The handler's name.
        payload: A mapping, or the JSON text of an object. None is the empty object.

    The other fields are those of JobOptions.

    Raises:
        InvalidJob: with the field that cannot be stored.
    """

    kind: str
    payload: Mapping[str, Any] | str | None = field(default=None, repr=False)
    queue: str = field(default=DEFAULT_QUEUE, kw_only=True)
    priority: int = field(default=0, kw_only=True)
    run_at: datetime | None = field(default=None, kw_only=True)
    in_: Seconds | None = field(default=None, kw_only=True)
    max_attempts: int = field(default=DEFAULT_MAX_ATTEMPTS, kw_only=True)
    max_crashes: int = field(default=DEFAULT_MAX_CRASHES, kw_only=True)
    timeout: Seconds | None = field(default=None, kw_only=True)
    unique_key: str | None = field(default=None, kw_only=True)
    headers: Mapping[str, Any] | None = field(default=None, kw_only=True, repr=False)
    unique_for: Seconds | None = field(default=None, kw_only=True)
    unique_states: Iterable[State] | None = field(default=None, kw_only=True)
    ordering_key: str | None = field(default=None, kw_only=True)
    on_dead: OnDead | None = field(default=None, kw_only=True)
    concurrency_key: str | None = field(default=None, kw_only=True)
    concurrency_limit: int | None = field(default=None, kw_only=True)
    rate_key: str | None = field(default=None, kw_only=True)
    rate_limit: int | None = field(default=None, kw_only=True)
    rate_period: Seconds | None = field(default=None, kw_only=True)
    after: Iterable[Enqueued | int] | None = field(default=None, kw_only=True)
    after_failed: AfterFailed | None = field(default=None, kw_only=True)

    #: As stored. Taken once, so that what the caller does to the mapping later changes nothing.
    payload_json: JsonText = field(init=False, repr=False, compare=False)
    headers_json: JsonText = field(init=False, repr=False, compare=False)
    run_at_text: str | None = field(init=False, repr=False, compare=False)
    delay_s: float | None = field(init=False, repr=False, compare=False)
    timeout_s: float | None = field(init=False, repr=False, compare=False)
    #: What of unique_for and below was chosen, as enqueue_many takes it.
    more: Mapping[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name("kind", self.kind)
        check_name("queue", self.queue)
        check_int("priority", self.priority, MIN_PRIORITY, MAX_PRIORITY)
        check_int("max_attempts", self.max_attempts, 1, MAX_TRIES)
        check_int("max_crashes", self.max_crashes, 1, MAX_TRIES)
        if self.unique_key is not None:
            check_key("unique_key", self.unique_key)
        if self.run_at is not None and self.in_ is not None:
            raise InvalidJob("in_", "give run_at or in_, not both")
        derive = object.__setattr__  # the dataclass is frozen for everyone else
        derive(self, "payload_json", _payload_json(self.payload))
        derive(self, "headers_json", encode_headers(self.headers))
        derive(self, "run_at_text", None if self.run_at is None else _utc_text(self.run_at))
        derive(self, "delay_s", None if self.in_ is None else check_seconds("in_", self.in_, MAX_DELAY_S, zero=True))
        derive(
            self, "timeout_s", None if self.timeout is None else check_seconds("timeout", self.timeout, MAX_TIMEOUT_S)
        )
        more = (
            self.unique_for, self.unique_states, self.ordering_key, self.on_dead, self.concurrency_key,
            self.concurrency_limit, self.rate_key, self.rate_limit, self.rate_period, self.after, self.after_failed,
        )  # fmt: skip
        chosen = more != _NO_MORE  # most jobs have none, and are checked in no time
        derive(self, "more", check_more(dict(zip(MORE, more, strict=True)), self.unique_key) if chosen else {})

    @property
    def plain(self) -> bool:
        """Whether nothing but a row of its own is needed for it: no key, no parents."""
        return self.unique_key is None and not self.more

    def with_headers(self, more: Mapping[str, str]) -> NewJob:
        """This job with *more* headers; as it is when it names one of them itself, or they would not fit."""
        own = {} if self.headers_json == EMPTY else json.loads(self.headers_json)
        if any(name in own for name in more):
            return self
        try:
            merged = encode_headers({**own, **more})
        except InvalidJob:
            return self
        made = copy(self)
        object.__setattr__(made, "headers_json", merged)
        return made

    def with_payload(self, payload: JsonText) -> NewJob:
        """This job with another payload."""
        made = copy(self)
        object.__setattr__(made, "payload", payload)
        object.__setattr__(made, "payload_json", payload)
        return made

    def element(self, on_conflict: str) -> str:
        """This job as an element of the JSON array that `enqueue_many` takes; its payload is not parsed again."""
        return f"{self.element_head(on_conflict)}{self.payload_json}}}"

    def element_head(self, on_conflict: str) -> str:
        """Its element up to the payload."""
        named = {"kind": self.kind, **self.chosen(on_conflict)}
        options = json.dumps(named, ensure_ascii=False, separators=(",", ":"))
        headers = "" if self.headers_json == EMPTY else f',"headers":{self.headers_json}'
        return f'{options[:-1]}{headers},"payload":'

    def chosen(self, on_conflict: str) -> dict[str, object]:
        """Its options that are not as usual, but for the headers; named and measured as `enqueue_many` takes them."""
        named: dict[str, object] = {}
        if self.queue != DEFAULT_QUEUE:
            named["queue"] = self.queue
        if self.priority != 0:
            named["priority"] = self.priority
        if self.max_attempts != DEFAULT_MAX_ATTEMPTS:
            named["max_attempts"] = self.max_attempts
        if self.max_crashes != DEFAULT_MAX_CRASHES:
            named["max_crashes"] = self.max_crashes
        optional = {"run_at": self.run_at_text, "delay": self.delay_s, "timeout": self.timeout_s}
        named.update({name: value for name, value in optional.items() if value is not None})
        named.update(self.more)
        if self.unique_key is not None:
            named["unique_key"] = self.unique_key
            named["on_conflict"] = on_conflict
        return named


class Alike(Sequence[NewJob]):
    """Jobs that differ in their payloads only: they are checked once, and made one by one only for who asks.

    Args:
        first: What they have in common, with any payload.
        payloads: The payload of each, at least one.
    """

    __slots__ = ("first", "payloads")

    def __init__(self, first: NewJob, payloads: Sequence[JsonText]) -> None:
        self.first = first
        self.payloads = payloads

    def __len__(self) -> int:
        return len(self.payloads)

    @overload
    def __getitem__(self, index: int) -> NewJob: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[NewJob]: ...
    def __getitem__(self, index: int | slice) -> NewJob | Sequence[NewJob]:
        if isinstance(index, slice):
            return [self.first.with_payload(payload) for payload in self.payloads[index]]
        return self.first.with_payload(self.payloads[index])

    def texts(self) -> Iterator[str]:
        """The payloads, for who knows what they are."""
        return self.payloads.texts() if isinstance(self.payloads, Columns) else iter(self.payloads)


def variants(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Jobs of *jobs* that have between them all options that any of *jobs* has."""
    return (jobs.first,) if isinstance(jobs, Alike) else jobs


def elements(jobs: Sequence[NewJob], on_conflict: str) -> Iterable[str]:
    """The element of each."""
    if not isinstance(jobs, Alike):
        return [job.element(on_conflict) for job in jobs]
    head = jobs.first.element_head(on_conflict)
    return [f"{head}{payload}}}" for payload in jobs.texts()]


_NO_MORE: Final = (None,) * len(MORE)


def _payload_json(payload: Mapping[str, Any] | str | None) -> JsonText:
    if payload is None:
        return EMPTY
    return check_json(payload) if isinstance(payload, str) else encode(payload)


def _utc_text(run_at: datetime) -> str:
    if not isinstance(run_at, datetime):
        raise InvalidJob("run_at", f"must be a datetime with a time zone, not {type(run_at).__name__}")
    if run_at.utcoffset() is None:
        raise InvalidJob("run_at", "has no time zone: use datetime.now(UTC) or give tzinfo")
    try:
        when = run_at.astimezone(UTC)
    except OverflowError:
        raise InvalidJob("run_at", "is outside the years 1 to 9999 in UTC") from None
    if when > _LATEST:
        raise InvalidJob("run_at", f"must not be later than {_LATEST:%Y-%m-%d}")
    return when.isoformat()


def job_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """What *options* choose for the job itself; an unknown name stays, for NewJob to refuse."""
    sending = ("on_conflict", "schema")
    return {name: value for name, value in options.items() if value is not None and name not in sending}
