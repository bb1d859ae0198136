"""What a handler's ending becomes; making an Outcome never raises."""

import asyncio
import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor import Cancel, Retry, Snooze
from supervisor.errors import PayloadInvalid, UnknownKind
from supervisor.job import SETTLE_EVENTS
from supervisor.outcome import MAX_ERROR_BYTES, Outcome


def caught(exc: BaseException) -> BaseException:
    """*exc* with a traceback, as a worker sees it."""
    try:
        raise exc
    except BaseException as error:
        return error


@pytest.mark.parametrize(
    ("exc", "event", "delay", "reason"),
    [
        (Retry(), "failed", None, "retry"),
        (Retry(timedelta(minutes=1)), "failed", 60.0, "retry"),
        (Retry(after=0), "failed", 0.0, "retry"),
        (Snooze(1.5), "snoozed", 1.5, None),
        (Cancel("no such user"), "dead", None, "cancel"),
        (PayloadInvalid("mail", "user_id (missing)"), "dead", None, "payload"),
        (UnknownKind("mail"), "unknown", None, "unknown_kind"),
        (ValueError("boom"), "failed", None, "error"),
        (SystemExit(1), "failed", None, "error"),
        (KeyboardInterrupt(), "failed", None, "error"),
        (asyncio.CancelledError(), "failed", None, "error"),
        (ExceptionGroup("two", [ValueError("a"), KeyError("b")]), "failed", None, "error"),
    ],
)
def test_each_ending_is_one_event(exc: BaseException, event: str, delay: float | None, reason: str | None) -> None:
    outcome = Outcome.from_exception(caught(exc))
    assert (outcome.event, outcome.delay, outcome.reason) == (event, delay, reason)
    assert outcome.event in SETTLE_EVENTS


def test_done_and_timeout() -> None:
    assert Outcome.done() == Outcome("done", None, None, None)
    timed_out = Outcome.timed_out(30)
    assert (timed_out.event, timed_out.reason) == ("failed", "timeout")
    assert "30 s" in str(timed_out.error)


@pytest.mark.parametrize("after", [-1, math.nan, math.inf, timedelta(days=-1), timedelta(days=100_000)])
def test_a_delay_that_is_none_is_the_authors_error(after: Any) -> None:
    """The job then fails like any other, with the reason, and is not lost in the far future (B36)."""
    for verb in (Retry, Snooze):
        with pytest.raises(ValueError, match="after must be"):
            verb(after)


@pytest.mark.parametrize("after", ["5", True, [1]])
def test_a_delay_of_another_type_is_the_authors_error(after: Any) -> None:
    with pytest.raises(TypeError, match="after must be"):
        Snooze(after)


def test_a_field_spoilt_later_is_a_plain_failure() -> None:
    exc = Snooze(1)
    exc.after = math.nan
    assert Outcome.from_exception(exc).event == "failed"


def test_an_error_says_type_message_causes_and_where() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as exc:
        text = Outcome.failed(exc).error
    assert text is not None
    lines = text.splitlines()
    assert lines[0] == "ValueError: outer"
    assert lines[1] == "  caused by KeyError: 'inner'"
    assert 'raise ValueError("outer") from inner' in text


def test_a_cause_hidden_by_from_none_stays_hidden() -> None:
    """Validation errors quote values; what is raised `from None` must not bring them back."""
    try:
        try:
            raise KeyError("secret")
        except KeyError:
            raise ValueError("outer") from None
    except ValueError as exc:
        text = str(Outcome.failed(exc).error)
    assert "KeyError" not in text
    assert "secret" not in text


def recurse(depth: int) -> None:
    if depth == 0:
        raise RuntimeError("deep")
    recurse(depth - 1)


def test_a_deep_traceback_keeps_the_innermost_frames() -> None:
    try:
        recurse(500)
    except RuntimeError as exc:
        text = str(Outcome.failed(exc).error)
    assert len(text.encode()) <= MAX_ERROR_BYTES
    assert 'raise RuntimeError("deep")' in text


def test_a_cycle_of_causes_ends() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert str(Outcome.failed(one).error).count("caused by") == 1


class Unprintable(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text for you")


class NotText(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]  # noqa: PLE0307


@pytest.mark.parametrize("kind", [Unprintable, NotText])
def test_an_exception_that_cannot_be_printed_is_still_an_outcome(kind: type[Exception]) -> None:
    outcome = Outcome.from_exception(caught(kind()))
    assert outcome.event == "failed"
    assert str(outcome.error).startswith(kind.__name__)


@settings(deadline=None)
@given(st.text(st.characters(), max_size=5000) | st.text(max_size=50).map(lambda text: text * 500))
def test_any_message_becomes_a_text_the_database_keeps(message: str) -> None:
    for exc in (ValueError(message), Cancel(message), Retry(reason=message)):
        error = Outcome.from_exception(exc).error
        assert error is not None
        assert "\x00" not in error
        assert len(error.encode("utf-8")) <= MAX_ERROR_BYTES


def test_surrogates_and_nul_are_taken_out() -> None:
    assert str(Outcome.failed(ValueError("a\x00b\ud800c")).error) == "ValueError: ab?c"


def test_a_message_cut_inside_a_character_stays_text() -> None:
    text = str(Outcome.failed(ValueError("é" * 100_000)).error)
    assert text.startswith("ValueError: éé")
    assert "100000 characters" in text
