"""Figures of the benches: medians, spread, and how they are written."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.stats import Summary, percentile, readable


def test_summary_is_the_median_with_its_range() -> None:
    found = Summary.of([30.0, 10.0, 20.0, 1000.0, 15.0])
    assert (found.median, found.low, found.high, found.rounds) == (20.0, 10.0, 1000.0, 5)
    assert found.spread == 49.5
    assert str(found) == "20.0 (10.0-1,000, 5 rounds)"


def test_summary_of_two_is_their_middle() -> None:
    assert Summary.of([1, 2]).median == 1.5


def test_one_outlier_does_not_move_the_median() -> None:
    assert Summary.of([100, 101, 5]).median == 100


def test_summary_for_json_has_its_spread() -> None:
    assert Summary.of([9, 10, 12]).as_dict() == {"median": 10, "low": 9, "high": 12, "rounds": 3, "spread": 0.3}


def test_a_median_of_zero_has_no_spread() -> None:
    assert Summary.of([0.0, 0.0]).spread == 0.0


@pytest.mark.parametrize("values", [[], [math.nan], [1.0, math.inf]])
def test_no_figure_is_no_summary(values: list[float]) -> None:
    with pytest.raises(ValueError, match="no figure"):
        Summary.of(values)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (31_234.5, "31,200"),
        (1_000_000, "1,000,000"),
        (999.6, "1,000"),
        (482.4, "482"),
        (99.96, "100"),
        (9.996, "10.0"),
        (4.666, "4.67"),
        (0.0341, "0.0341"),
        (0, "0"),
        (-4.666, "-4.67"),
    ],
)
def test_three_digits_are_shown(value: float, text: str) -> None:
    assert readable(value) == text


@given(st.floats(min_value=1e-6, max_value=1e12))
def test_what_is_shown_is_within_half_a_percent(value: float) -> None:
    assert float(readable(value).replace(",", "")) == pytest.approx(value, rel=0.0051)


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, share) for share in (50, 99, 100)] == [50, 99, 100]
    assert percentile([7.0], 99) == 7
