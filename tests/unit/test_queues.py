"""What a supervisor does when settings of queues change: heard, read from the table, in any order."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from supervisor.db.link import Link
from supervisor.db.queues import QueueSettings
from supervisor.parent.queues import Queues

AT = datetime(2030, 1, 1, tzinfo=UTC)


class Told:
    """What followed, in order."""

    def __init__(self) -> None:
        self.what: list[str] = []

    def __call__(self, word: str) -> Callable[..., None]:
        return lambda *queue: self.what.append(" ".join([word, *queue]))

    def take(self) -> list[str]:
        taken, self.what = self.what, []
        return taken


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def queues(told: Told) -> Queues:
    return Queues(
        cast("Link", None), "supervisor", on_paused=told("paused"), on_opened=told("opened"), on_limited=told("limited")
    )


def row(*, paused: bool = False, most: int | None = None, counted: bool = True) -> QueueSettings:
    return QueueSettings("q", AT if paused else None, None, most, AT if most else None, counted, None)


def heard(**settings: Any) -> dict[str, Any]:
    return {"paused": False, "max_running": None, "counted": True, **settings}


def test_each_change_has_its_consequence_once(queues: Queues, told: Told) -> None:
    queues.heard("q", heard(paused=True))
    assert (told.take(), queues.paused("q"), queues.paused("other")) == (["paused q"], True, False)
    queues.heard("q", heard(paused=True))
    assert told.take() == []
    queues.heard("q", heard())
    assert (told.take(), queues.paused("q")) == (["opened q"], False)
    queues.heard("q", heard(max_running=3, counted=False))
    assert told.take() == ["limited"]
    queues.heard("q", heard(max_running=3))
    assert told.take() == ["opened q"]
    queues.heard("q", heard(max_running=2))
    assert told.take() == []
    queues.heard("q", heard(max_running=4))
    assert told.take() == ["opened q"]
    queues.heard("q", heard())
    assert told.take() == ["opened q"]


def test_a_rate_that_changes_lets_somebody_look_at_once(queues: Queues, told: Told) -> None:
    """Whoever was to look when the old one allowed the next start would come too late."""
    queues.heard("q", heard(rate_limit=1, rate_period=3600.0))
    assert told.take() == []
    queues.heard("q", heard(rate_limit=1, rate_period=1.0))
    assert told.take() == ["opened q"]
    queues.heard("q", heard(rate_limit=1, rate_period=1.0, max_running=3, counted=False))
    assert told.take() == ["limited"]
    queues.heard("q", heard(max_running=3))
    assert told.take() == ["opened q"]


def test_what_no_notification_told_the_table_tells(queues: Queues, told: Told) -> None:
    queues.refresh([row(paused=True)], asked_at=0.0)
    assert (told.take(), queues.paused("q")) == (["paused q"], True)
    queues.refresh([row(most=2)], asked_at=0.0)
    assert told.take() == ["opened q"]
    queues.refresh([], asked_at=0.0)
    assert (told.take(), queues.paused("q")) == (["opened q"], False)


def test_a_table_read_before_a_notification_does_not_undo_it(queues: Queues, told: Told) -> None:
    """A queue that was resumed would else be taken for paused, and its notifications wake nobody, for a second."""
    queues.refresh([row(paused=True)], asked_at=0.0)
    queues.heard("q", heard())
    told.take()
    queues.refresh([row(paused=True)], asked_at=0.0)
    assert (told.take(), queues.paused("q")) == ([], False)
    queues.refresh([row(paused=True)], asked_at=float("inf"))
    assert (told.take(), queues.paused("q")) == (["paused q"], True)
