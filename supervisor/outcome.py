"""How a run ended, and what a handler may raise to say so.

    handler returns          -> done
    raises Retry             -> failed, at the time it asks for      counts an attempt
    raises Snooze            -> snoozed                              gives the attempt back
    raises Cancel            -> dead, reason "cancel"
    payload does not fit     -> dead, reason "payload"
    kind has no handler      -> unknown, back for workers that know it
    returns what cannot be stored as its result -> dead, reason "result"
    raises anything else     -> failed, after the handler's backoff

"Anything else" includes SystemExit, KeyboardInterrupt and CancelledError: a
handler's ending is that job's and never the worker's. Who cancelled a handler
on purpose (timeout, drain, lost lease) knows better and makes its own Outcome.

Always true: making an Outcome never raises, whatever the exception does when it
is printed; its texts fit the database (no NUL, no surrogates, 8 KiB at most) and hold no password that
`dsn.mask` knows of.

Elsewhere: what an event does to the job (job.py); the wait (backoff.py).
"""

from __future__ import annotations

import math
import traceback
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Final

from supervisor.dsn import mask
from supervisor.errors import InvalidResult, PayloadInvalid, UnknownKind

#: The most bytes of an error text that are kept, UTF-8.
MAX_ERROR_BYTES: Final = 8192

#: The longest delay a handler may ask for, in seconds (366 days).
MAX_DELAY_S: Final = 366 * 86_400.0

_MAX_MESSAGE_CHARS: Final = 2000
_MAX_MASKED_CHARS: Final = 8000
_MAX_FRAMES: Final = 20
_MAX_CAUSES: Final = 3


def _seconds(after: timedelta | float) -> float:
    """*after* in seconds; ValueError or TypeError when it is no usable delay."""
    seconds = after.total_seconds() if isinstance(after, timedelta) else after
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"after must be seconds or a timedelta, not {type(after).__name__}")
    if not (math.isfinite(seconds) and 0 <= seconds <= MAX_DELAY_S):
        raise ValueError(f"after must be 0 to {MAX_DELAY_S:g} seconds (366 days)")
    return float(seconds)


class Retry(Exception):
    """Raise it to fail this attempt and choose when the next one is.

    Args:
        after: Seconds or a timedelta from now. None leaves it to the handler's backoff.
        reason: Kept as the attempt's error.
    """

    def __init__(self, after: timedelta | float | None = None, reason: str | None = None) -> None:
        super().__init__(after, reason)
        self.after = None if after is None else _seconds(after)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or "the handler asked for another attempt"


class Snooze(Exception):
    """Raise it to run again *after* seconds (or a timedelta); the attempt is given back."""

    def __init__(self, after: timedelta | float) -> None:
        super().__init__(after)
        self.after = _seconds(after)

    def __str__(self) -> str:
        return f"snoozed for {self.after:g} s"


class Cancel(Exception):
    """Raise it when no further attempt can help: the job is dead at once, with *reason* as its error."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return str(self.reason)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run ended, ready to be written.

    Attributes:
        event: An event word of the database's `settle` (job.SETTLE_EVENTS).
        error: A text for people, many lines; None when nothing went wrong.
        delay: Seconds until the next run, when the handler chose it.
        reason: A word from a small fixed set: error, retry, timeout, cancel, payload, result,
            unknown_kind; of a done one result, when there is one to be stored.
    """

    event: str
    error: str | None = None
    delay: float | None = None
    reason: str | None = None

    @classmethod
    def done(cls) -> Outcome:
        """The handler came back."""
        return _DONE

    @classmethod
    def kept(cls) -> Outcome:
        """The handler came back with a result, which is to be stored with the end of the run."""
        return _KEPT

    @classmethod
    def failed(cls, exc: BaseException, delay: float | None = None) -> Outcome:
        """The handler raised *exc*: its type, message and last frames are kept."""
        return cls("failed", _error_text(exc), delay, "error")

    @classmethod
    def timed_out(cls, seconds: float) -> Outcome:
        """The handler ran longer than its timeout of *seconds*: a failure."""
        return cls("failed", f"timeout: still running after {seconds:g} s (the job's timeout)", None, "timeout")

    @classmethod
    def from_exception(cls, exc: BaseException) -> Outcome:
        """What *exc*, raised by a handler or while its call was prepared, means for the job."""
        try:
            if isinstance(exc, Retry):
                delay = None if exc.after is None else _seconds(exc.after)
                return cls("failed", _headline(exc), delay, "retry")
            if isinstance(exc, Snooze):
                return cls("snoozed", None, _seconds(exc.after), None)
            if isinstance(exc, Cancel):
                return cls("dead", _headline(exc), None, "cancel")
            if isinstance(exc, PayloadInvalid):
                return cls("dead", _headline(exc), None, "payload")
            if isinstance(exc, InvalidResult):
                return cls("dead", _headline(exc), None, "result")
            if isinstance(exc, UnknownKind):
                return cls("unknown", _headline(exc), None, "unknown_kind")
        except BaseException as broken:
            return cls.failed(broken)
        return cls.failed(exc)


_DONE: Final = Outcome("done")
_KEPT: Final = Outcome("done", reason="result")


def _error_text(exc: BaseException) -> str:
    """Headline, causes and the last frames of *exc*."""
    parts = [_headline(exc)]
    try:
        cause, seen = exc, {id(exc)}
        while len(seen) <= _MAX_CAUSES:
            following = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
            if following is None or id(following) in seen:
                break
            parts.append(f"  caused by {_headline(following)}")
            seen.add(id(following))
            cause = following
        frames = _frames(exc.__traceback__)
        if frames:
            parts.append("Traceback (most recent call last):")
            parts.append(frames)
    except BaseException:
        parts.append("  (traceback could not be read)")
    return _fit("\n".join(parts))


def _frames(trace: TracebackType | None) -> str:
    """The innermost frames as text; the outermost are dropped first when they do not fit."""
    frames = traceback.format_tb(trace, limit=-_MAX_FRAMES)
    # Half of the room belongs to the message; a frame's source line can be long.
    while len(frames) > 1 and sum(map(len, frames)) > MAX_ERROR_BYTES // 2:
        frames.pop(0)
    return "".join(frames).rstrip()


def _headline(exc: BaseException) -> str:
    """``TypeName: message``, cut to a bounded length."""
    try:
        message = str(exc)
    except BaseException:
        message = "(its message could not be printed)"
    message = _without_passwords(message)
    if len(message) > _MAX_MESSAGE_CHARS:
        message = f"{message[:_MAX_MESSAGE_CHARS]}... ({len(message)} characters)"
    name = type(exc).__name__
    return _fit(f"{name}: {message}" if message else name)


def _without_passwords(message: str) -> str:
    """*message* without the passwords of addresses: handlers' drivers quote them, and this is kept and shown."""
    if len(message) <= _MAX_MASKED_CHARS:
        return mask(message)
    # More than is kept, since a cut may halve a password; the rest only counts.
    return mask(message[:_MAX_MASKED_CHARS]) + message[_MAX_MASKED_CHARS:]


def _fit(text: str) -> str:
    """*text* as the database can keep it, at most MAX_ERROR_BYTES long."""
    data = text.replace("\x00", "").encode("utf-8", "replace")
    if len(data) > MAX_ERROR_BYTES:
        data = data[: MAX_ERROR_BYTES - 3] + b"..."
    return data.decode("utf-8", "ignore")
