"""The time a platform must give: one sum, used by the stop itself, the start's warning and the shipped files."""

import pytest

from supervisor.grace import needed_s, shortage


def test_what_is_needed_grows_with_the_drain_and_is_more_than_it() -> None:
    assert needed_s(25) > 25
    assert needed_s(60) - needed_s(25) == 35


def test_enough_or_unknown_is_no_shortage() -> None:
    assert shortage(25, None) is None
    assert shortage(25, needed_s(25)) is None


def test_a_shortage_is_told_with_its_numbers_and_both_remedies() -> None:
    text = shortage(25, 30)
    assert text is not None
    assert "after 30 s" in text
    assert f"may take {needed_s(25):g} s" in text
    assert f"SUPERVISOR_TERMINATION_GRACE_S to {needed_s(25):g}" in text
    assert f"SUPERVISOR_DRAIN_TIMEOUT_S to {30 - needed_s(0):g}" in text


@pytest.mark.parametrize("grace_s", [1, needed_s(0) - 1])
def test_a_grace_too_short_for_any_drain_is_not_answered_with_a_negative_one(grace_s: float) -> None:
    text = shortage(25, grace_s)
    assert text is not None
    assert "SUPERVISOR_DRAIN_TIMEOUT_S to" not in text
