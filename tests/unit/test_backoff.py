"""Waits stay finite and bounded, whatever the attempt and whatever a handler's own function does (B36)."""

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor import Backoff
from supervisor.backoff import MAX_DELAY_S, evaluate


@settings(deadline=None)
@given(
    base=st.floats(0, 1e300),
    cap=st.floats(0, MAX_DELAY_S),
    attempts=st.integers(-5, 10**9),
)
def test_a_wait_is_between_zero_and_the_cap(base: float, cap: float, attempts: int) -> None:
    upper = Backoff(base, cap).upper(attempts)
    assert 0 <= upper <= cap


@pytest.mark.parametrize("attempts", [15, 47, 400, 4000, 2**63])
def test_many_attempts_wait_the_cap(attempts: int) -> None:
    assert Backoff(1, 3600).upper(attempts) == 3600


def test_waits_double() -> None:
    assert [Backoff(1, 100).upper(n) for n in range(8)] == [1, 2, 4, 8, 16, 32, 64, 100]
    assert Backoff(0, 100).upper(40) == 0


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf, MAX_DELAY_S + 1])
def test_a_cap_out_of_range_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="backoff cap"):
        Backoff(1, bad)


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf])
def test_a_base_out_of_range_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="backoff base"):
        Backoff(bad)


@pytest.mark.parametrize("bad", ["1", True, None, timedelta(seconds=1)])
def test_only_numbers_are_seconds(bad: Any) -> None:
    with pytest.raises(TypeError, match="backoff base"):
        Backoff(bad)


def _raises(attempt: int) -> float:
    raise SystemExit(3)


@pytest.mark.parametrize(
    "function",
    [
        _raises,
        lambda _: -1.0,
        lambda _: math.nan,
        lambda _: math.inf,
        lambda _: 10**400,
        lambda _: timedelta(days=-1),
        lambda _: timedelta.max,
        lambda _: "5",
        lambda _: None,
        lambda _: True,
        lambda: 5,
    ],
)
def test_a_bad_answer_of_a_function_is_a_problem_and_no_wait(function: Callable[..., Any]) -> None:
    seconds, problem = evaluate(function, 3)
    assert seconds is None
    assert problem is not None
    assert problem.startswith("backoff function ")


def test_a_function_is_asked_with_the_attempt() -> None:
    assert evaluate(lambda attempt: attempt * 2, 3) == (6.0, None)
    assert evaluate(lambda attempt: timedelta(minutes=attempt), 2) == (120.0, None)
    assert evaluate(lambda _: 0, 1) == (0.0, None)
