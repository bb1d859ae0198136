"""What parent and worker tell each other.

    parent -> worker   Lanes, Wake, Isolate, HandBack, CancelJob, Drain, Stop
    worker -> parent   Ready, Hungry, More, Isolated, SessionChanged, LeaseLost, Drained, BootFailed, Notice

Every message is a fact or a wish that is still right when it arrives late, and
the latest of a kind says it all (`key`) or several make one (Wake, Lanes: see
channel.py). A reader that was stopped for an hour finds a few messages, not
an hour's worth.

    encode(message) -> JSON bytes      decode(bytes) -> message, or why not

Always true: `decode` raises only `Unreadable`, whatever the bytes: the other
side runs users' code and may write anything. Times are monotonic seconds of this
machine, unless the name says `_us`: microseconds since 1970 by the database.

Elsewhere: how they travel (channel.py).
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from supervisor.cron import Entry

MAX_TEXT: Final = 100_000  # of a traceback; the longest message stays well below what a channel reassembles


class Lane(NamedTuple):
    """A (queue, priority) pair."""

    queue: str
    priority: int


class Mark(NamedTuple):
    """A lane's low-water mark: nothing claimable is known before (at_us, id)."""

    queue: str
    priority: int
    at_us: int
    id: int


class SetBack(NamedTuple):
    """A lane's mark is to move back to at_us, if it is past it."""

    queue: str
    priority: int
    at_us: int


@dataclass(frozen=True, slots=True)
class Wake:
    """There may be work: claim. One answer, Hungry or More, follows."""

    queue: str | None = None  # where, None: anywhere
    set_back: tuple[SetBack, ...] = ()
    all_back_to_us: int | None = None  # set every lane back to this point: there were too many to list
    t: Literal["wake"] = "wake"

    @property
    def plain(self) -> bool:
        """Whether it sets nothing back."""
        return not self.set_back and self.all_back_to_us is None


@dataclass(frozen=True, slots=True)
class Lanes:
    """Lanes that exist, with published marks; and lanes that do not exist any more."""

    lanes: tuple[Mark, ...] = ()
    remove: tuple[Lane, ...] = ()
    t: Literal["lanes"] = "lanes"


@dataclass(frozen=True, slots=True)
class Isolate:
    """Become quiet, for *patience_s* at most, and run suspects alone for a while. One answer, Isolated, follows."""

    patience_s: float
    t: Literal["isolate"] = "isolate"

    @property
    def key(self) -> Hashable:
        return self.t


@dataclass(frozen=True, slots=True)
class Drain:
    """Stop claiming, release the unstarted, finish the running until *deadline*; then say Drained and go on idle."""

    deadline: float
    reason: str
    t: Literal["drain"] = "drain"

    @property
    def key(self) -> Hashable:
        return self.t


@dataclass(frozen=True, slots=True)
class HandBack:
    """Release what has not started of this queue: it was paused."""

    queue: str
    t: Literal["hand_back"] = "hand_back"

    @property
    def key(self) -> Hashable:
        return (self.t, self.queue)


@dataclass(frozen=True, slots=True)
class CancelJob:
    """Tell the handler of this run to stop; nothing happens if it is not running here."""

    job_id: int
    token: int
    t: Literal["cancel"] = "cancel"

    @property
    def key(self) -> Hashable:
        return (self.t, self.job_id, self.token)


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave, after draining; *now*: without waiting for anything."""

    now: bool = False
    t: Literal["stop"] = "stop"

    @property
    def key(self) -> Hashable:
        return self.t


@dataclass(frozen=True, slots=True)
class Ready:
    """Handlers imported, database reached, session opened."""

    pid: int
    session: int
    kinds: tuple[str, ...]
    rss: int  # bytes at birth
    queues: tuple[str, ...] = ()  # known by name, in the order in which the scoreboard numbers them
    entries: tuple[Entry, ...] = ()  # of cron
    t: Literal["ready"] = "ready"

    @property
    def key(self) -> Hashable:
        return self.t


@dataclass(frozen=True, slots=True)
class Hungry:
    """The last claim left room and found nothing more that is due."""

    next_due_in_s: float | None  # the earliest job it saw that is not due yet
    found: bool  # it took jobs, though fewer than it could
    blocked: bool = False  # jobs are due that wait for a place of their queue
    t: Literal["hungry"] = "hungry"

    @property
    def key(self) -> Hashable:
        return self.t


@dataclass(frozen=True, slots=True)
class More:
    """The last claim came back full: another worker may find work too."""

    t: Literal["more"] = "more"

    @property
    def key(self) -> Hashable:
        return self.t


@dataclass(frozen=True, slots=True)
class Isolated:
    """The spell is over. *quiet*: whether it became quiet in time; *ran*: how many suspects it ran."""

    quiet: bool
    ran: int
    t: Literal["isolated"] = "isolated"

    @property
    def key(self) -> Hashable:
        return self.t


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """The worker opened a new session, since the old one was lost: renew this one."""

    session: int
    t: Literal["session"] = "session"

    @property
    def key(self) -> Hashable:
        return self.t


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """Writes for these jobs met another holder; their results were dropped."""

    job_ids: tuple[int, ...]
    t: Literal["lease_lost"] = "lease_lost"

    key: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class Drained:
    """Nothing is held any more: counts since the drain began."""

    finished: int
    released: int
    interrupted: int
    t: Literal["drained"] = "drained"

    @property
    def key(self) -> Hashable:
        return self.t


@dataclass(frozen=True, slots=True)
class BootFailed:
    """The worker cannot start and will not, however often it is tried."""

    traceback: str
    t: Literal["boot_failed"] = "boot_failed"

    @property
    def key(self) -> Hashable:
        return self.t


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning for the parent's log."""

    event: str
    fields: dict[str, Any] = field(default_factory=dict)
    t: Literal["notice"] = "notice"

    key: ClassVar[None] = None


ToWorker = Wake | Lanes | Isolate | HandBack | Drain | CancelJob | Stop
ToParent = Ready | Hungry | More | Isolated | SessionChanged | LeaseLost | Drained | BootFailed | Notice
Message = ToWorker | ToParent


class Unreadable(ValueError):
    """Bytes that are no message. `unknown`: of a type this side does not know, else malformed."""

    def __init__(self, reason: str, *, unknown: bool = False) -> None:
        super().__init__(reason)
        self.unknown = unknown


_ADAPTER: TypeAdapter[Message] = TypeAdapter(
    Annotated[Message, Field(discriminator="t")],
    config=ConfigDict(strict=True, ser_json_inf_nan="null", allow_inf_nan=False),
)


_PLAIN_WAKES: Final = 1_000
_encoded: dict[str | None, bytes] = {}
_decoded: dict[bytes, Wake] = {}


def encode(message: Message) -> bytes:
    """JSON; texts that cannot be UTF-8 and values JSON does not know are replaced, never refused."""
    if isinstance(message, Wake) and message.plain:
        # By far the most frequent, and a job waits for it.
        known = _encoded.get(message.queue)
        if known is None:
            known = _dumped(message)
            if len(_encoded) < _PLAIN_WAKES:
                _encoded[message.queue] = known
        return known
    return _dumped(message)


def _dumped(message: Message) -> bytes:
    if isinstance(message, BootFailed) and len(message.traceback) > MAX_TEXT:
        message = BootFailed(message.traceback[:2_000] + "\n...\n" + message.traceback[-MAX_TEXT:])
    if isinstance(message, Notice):
        message = Notice(message.event, {str(k): _short(v) for k, v in message.fields.items()})
    try:
        return _ADAPTER.dump_json(message)
    except ValueError:  # a lone surrogate
        plain = _ADAPTER.dump_python(message)
        return json.dumps(_clean(plain), ensure_ascii=False, separators=(",", ":")).encode()


def decode(data: bytes | bytearray | memoryview) -> Message:
    """The message in *data*.

    Raises:
        Unreadable: It is none.
    """
    data = bytes(data)
    known = _decoded.get(data)
    if known is not None:
        return known
    try:
        message = _ADAPTER.validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise Unreadable(
            f"{place or 'message'}: {first['msg']}", unknown=first["type"] == "union_tag_invalid"
        ) from None
    if len(_decoded) < _PLAIN_WAKES and isinstance(message, Wake) and message.plain:
        _decoded[data] = message
    return message


def _short(value: object) -> object:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    try:
        text = value if isinstance(value, str) else str(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose text failed with {type(error).__name__}>"
    return text if len(text) <= 4_000 else text[:4_000] + "..."


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value
