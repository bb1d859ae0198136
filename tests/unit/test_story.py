"""A job's story is told from its row: in order, with what is known, and honest about what is not."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from supervisor.story import Story, tell

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def row(**changed: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "id": 7,
        "status": "queued",
        "queue": "mail",
        "kind": "email.welcome",
        "priority": 0,
        "attempts": 0,
        "max_attempts": 3,
        "crashes": 0,
        "max_crashes": 3,
        "suspect": False,
        "claims": 0,
        "locked_by": None,
        "locked_until": None,
        "created_at": NOON,
        "run_at": NOON,
        "started_at": None,
        "finished_at": None,
        "cancel_at": None,
        "reason": None,
        "errors": [],
    }
    assert not changed.keys() - facts.keys()
    return {**facts, **changed}


def entry(seconds: float, event: str, **more: Any) -> dict[str, Any]:
    return {"at": at(seconds).isoformat(), "event": event, **more}


def told(story: Story) -> list[tuple[float | None, str]]:
    return [((step.at - NOON).total_seconds() if step.at else None, step.what) for step in story.steps]


def test_a_job_that_waits() -> None:
    assert told(tell(row(), NOON)) == [(0, "enqueued")]
    story = tell(row(run_at=at(3600)), at(10))
    assert told(story) == [(0, "enqueued"), (3600, "due")]
    assert [step.to_come for step in story.steps] == [False, True]
    assert story.steps[1].after_s == 3600
    assert story.unknown == ()


def test_a_job_that_runs() -> None:
    running = row(
        status="running",
        claims=1,
        attempts=1,
        started_at=at(2),
        locked_by="shop/1",
        locked_until=at(30),
        run_at=at(1.5),
    )
    story = tell(running, at(5))
    assert told(story) == [(0, "enqueued"), (1.5, "due"), (2, "started"), (30, "lease")]
    assert "attempt 1 of 3" in story.steps[2].text
    assert "shop/1" in story.steps[2].text
    assert story.steps[3].to_come


def test_a_job_with_a_past() -> None:
    """Failed, crashed, moved and put back by operators, and done at last: each with its time and its length."""
    errors = [
        entry(1, "failed", attempt=1, claims=1, error="ValueError: no\nTraceback ..."),
        entry(4, "crashed", attempt=2, claims=2, error="its worker died while running it: killed by SIGKILL"),
        entry(9, "dead", attempt=2, claims=3, error="Cancel: enough"),
        entry(60, "retried", by="alice", status="dead", attempt=2, claims=3),
        entry(61, "rescheduled", by="alice", was=at(60).isoformat(), to=at(90).isoformat()),
    ]
    done = row(status="done", claims=4, attempts=1, run_at=at(90), started_at=at(91), finished_at=at(95), errors=errors)
    story = tell(done, at(100))
    assert told(story) == [
        (0, "enqueued"),
        (1, "failed"),
        (4, "crashed"),
        (9, "dead"),
        (60, "retried"),
        (61, "rescheduled"),
        (90, "due"),
        (91, "started"),
        (95, "done"),
    ]
    assert [step.after_s for step in story.steps] == [None, 1, 3, 5, 51, 1, 29, 1, 4]
    assert story.steps[1].error == "ValueError: no\nTraceback ..."
    assert [step.by for step in story.steps if step.by] == ["alice", "alice"]
    assert "alice" in story.steps[4].text
    assert "after 4.0 s" in story.steps[-1].text
    assert not any("left no entry" in sentence for sentence in story.unknown)
    assert any("last one only" in sentence for sentence in story.unknown)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("attempts", "all of its 3 attempts"),
        ("crashes", "3 workers died"),
        ("payload", "does not fit"),
        ("unknown_kind", "no worker"),
        ("something new", "something new"),
    ],
)
def test_a_job_that_died_says_of_what(reason: str, words: str) -> None:
    story = tell(row(status="dead", reason=reason, finished_at=at(9), claims=0), at(10))
    assert words in story.steps[-1].text


def test_what_left_no_entry_is_counted() -> None:
    """Released and snoozed runs; and entries beyond the last ten."""
    story = tell(row(claims=3, errors=[entry(1, "failed", attempt=1, claims=2, error="x")]), at(5))
    assert "2 of its 3 claims left no entry" in story.unknown[0]
    assert "last 10" not in story.unknown[0]
    many = [entry(n, "failed", attempt=n, claims=n, error="x") for n in range(31, 41)]
    story = tell(row(claims=40, errors=many), at(50))
    assert "30 of its 40 claims left no entry" in story.unknown[0]
    assert "the last 10" in story.unknown[0]
    assert "5000000 of its 5000000 claims" in tell(row(claims=5_000_000), at(5)).unknown[0]


def test_entries_that_something_else_has_written_break_nothing() -> None:
    odd: list[Any] = [
        {},
        "text",
        None,
        {"at": "yesterday", "event": "failed", "attempt": "{boom}", "claims": "x", "error": 7},
        {"at": "2026-06-01", "event": "{by}", "by": {"a": 1}},
        {"at": 5, "event": None, "error": ["x"]},
    ]
    story = tell(row(errors=odd, claims=2), at(5))
    assert len(story.steps) == 5
    assert story.document()["steps"]
    assert tell(row(errors=None), at(5)).steps
