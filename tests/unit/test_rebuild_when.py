"""After which time an index may be rebuilt again, and what is in the way."""

import pytest

from supervisor.db.health import Index
from supervisor.db.rebuild import Obstacle, Past, Rights
from supervisor.parent.rebuild_when import hinders, next_wait, problem

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


@pytest.mark.parametrize(
    ("found", "drops", "words"),
    [
        (Rights(14_00_03, False, "jobs", True, True), False, "update the server to 14.4"),
        (Rights(14_00_04, False, "jobs", True, True), False, None),
        (Rights(18_00_01, True, "jobs", True, True), False, "the primary"),
        (Rights(18_00_01, False, "jobs", False, False), False, "grant maintain on supervisor.job to jobs, or grant"),
        (Rights(16_00_01, False, "jobs", False, False), False, "grant the tables' owner to jobs"),
        (Rights(18_00_01, False, "jobs", True, False), False, None),
        (Rights(18_00_01, False, "jobs", True, False), True, "drop index concurrently supervisor.job_lane"),
        (Rights(18_00_01, False, "jobs", True, True), True, None),
    ],
)
def test_what_server_and_role_do_not_let_be_done_has_a_remedy(found: Rights, drops: bool, words: str | None) -> None:
    why = problem(found, Index("job", "job_lane", 2**27, 2**26, True, 2**26), "supervisor", drops=drops)
    if words is None:
        assert why is None
    else:
        assert why is not None
        assert words in why[1]
