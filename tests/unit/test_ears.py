"""What is said of listening: a pooler in between is said once, and then ever more rarely."""

import pytest
import structlog

from supervisor.parent.ears import Ears
from supervisor.parent.health import HealthState
from supervisor.settings import Settings

HOUR = 3600.0


class Clock:
    at = 0.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ears(clock: Clock) -> Ears:
    return Ears(
        "host=/nowhere",
        Settings(),
        health=HealthState(),
        on_notice=lambda _: None,
        on_listening=lambda: None,
        now=clock,
    )


def said_in(ears: Ears, clock: Clock, hours: float) -> int:
    """Warnings within so many hours, with a self-test that fails each minute."""
    end = clock.at + hours * HOUR
    with structlog.testing.capture_logs() as lines:
        while clock.at < end:
            ears._deaf()
            clock.at += 63.0
    return len([line for line in lines if line["event"] == "listener.deaf"])


def test_a_pooler_is_named_once_and_then_ever_more_rarely(ears: Ears, clock: Clock) -> None:
    """Once it was a warning each minute, for as long as the service ran."""
    assert said_in(ears, clock, 0.15) == 1
    assert said_in(ears, clock, 24) <= 8
    assert 4 <= said_in(ears, clock, 7 * 24) <= 8


async def test_one_that_comes_back_is_named_at_once(ears: Ears, clock: Clock) -> None:
    assert said_in(ears, clock, 24) > 1
    await ears._hears()
    assert said_in(ears, clock, 0.15) == 1
