"""The table of a job's moves: what it promises whatever happens in which order."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.errors import IllegalMove
from supervisor.job import SETTLE_EVENTS, TRANSITIONS, Event, Status, apply

STARTS = [pair for pair in product(Status, Event) if pair in TRANSITIONS]


def test_every_pair_is_a_move_or_an_error_that_names_both_ends() -> None:
    for status, event in product(Status, Event):
        if (status, event) in TRANSITIONS:
            assert apply(status, event) is TRANSITIONS[status, event]
        else:
            with pytest.raises(IllegalMove) as caught:
                apply(status, event)
            assert f"{status.value!r}" in str(caught.value)
            assert f"{event.value!r}" in str(caught.value)


def test_a_done_job_takes_no_event() -> None:
    with pytest.raises(IllegalMove, match="it has ended"):
        apply(Status.DONE, Event.RETRY)


def test_every_event_is_used_and_every_word_a_run_reports_is_a_move_of_running() -> None:
    assert {event for _, event in TRANSITIONS} == set(Event)
    assert all((Status.RUNNING, event) in TRANSITIONS for event in SETTLE_EVENTS)


def test_no_move_counts_a_failure_and_a_crash_at_once() -> None:
    for (status, event), move in TRANSITIONS.items():
        # A claim counts the attempt ahead; what charges a crash, or nothing, must give it back.
        if status is Status.RUNNING and move.to is Status.QUEUED and event is not Event.FAILED:
            assert move.attempts == -1, event
        assert move.crashes == 0 or move.attempts == -1, event


def test_a_job_that_never_started_keeps_its_place() -> None:
    for event in (Event.RELEASED, Event.INTERRUPTED, Event.SUSPECT):
        assert not apply(Status.RUNNING, event).later


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[Status.DONE, Event.RETRY] = TRANSITIONS[Status.DEAD, Event.RETRY]  # type: ignore[index]


@settings(deadline=None)
@given(st.lists(st.sampled_from(Event), max_size=60))
def test_counts_never_fall_below_zero_in_any_history(events: list[Event]) -> None:
    """Replays any order of events; those a status does not know change nothing."""
    status, attempts, crashes = Status.QUEUED, 0, 0
    for event in events:
        if (status, event) not in TRANSITIONS:
            continue
        move = apply(status, event)
        attempts = 0 if move.reset else attempts + move.attempts
        crashes = 0 if move.reset else crashes + move.crashes
        status = move.to
        assert attempts >= 0
        assert crashes >= 0
        assert attempts >= 1 or status is not Status.RUNNING
