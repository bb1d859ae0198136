"""After which time an index may be rebuilt again, and what is in the way."""

import pytest

from supervisor.db.rebuild import Obstacle, Past
from supervisor.parent.rebuild_when import hinders, next_wait

HOUR = 3600.0
DAY = 24 * HOUR


def past(outcome: str, wait_s: float, ago_s: float) -> Past:
    """A rebuild after which the index might have been tried for so long."""
    return Past("job_lane", outcome, -ago_s, wait_s, 100, 10)


@pytest.mark.parametrize(
    ("before", "outcome", "expected"),
    [
        (None, "done", HOUR),
        (None, "vain", DAY),
        (None, "failed", 600.0),
        (past("done", HOUR, 1), "done", 2 * HOUR),  # bloated again at once
        (past("done", HOUR, 5 * HOUR), "done", HOUR),  # after a while
        (past("done", 5 * DAY, 1), "done", 7 * DAY),
        (past("done", HOUR, 1), "vain", DAY),
        (past("done", DAY, 1), "vain", 2 * DAY),
        (past("done", HOUR, 1), "failed", 600.0),
        (past("failed", 600, 1), "failed", 1200.0),
        (past("begun", 1200, 1), "failed", 2400.0),
        (past("failed", 20 * HOUR, 1), "failed", DAY),
        (past("failed", DAY, 1), "done", HOUR),
    ],
)
def test_an_index_that_brought_little_waits_ever_longer(before: Past | None, outcome: str, expected: float) -> None:
    assert next_wait(before, outcome) == expected


def test_young_transactions_are_met_and_all_else_is_waited_for() -> None:
    def transaction(age_s: float | None) -> Obstacle:
        return Obstacle("transaction", "3/17", "app", 1, age_s)

    assert not hinders(transaction(29), 30, set())
    assert hinders(transaction(30), 30, set())
    assert hinders(transaction(None), 30, {"3/17"}), "it was there at the first look and still is"
    assert not hinders(transaction(None), 30, {"3/16"})
    for kind in ("lock", "build", "prepared"):
        assert hinders(Obstacle(kind, "3/17", "app", 1, None), 30, set())
