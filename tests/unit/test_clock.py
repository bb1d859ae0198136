"""The database's clock as estimated from its replies."""

import math

from supervisor.clock import DRIFT, DbClock, remaining, to_ns


class Time:
    def __init__(self, at: float) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


def make(*, wall: float = 1_000_000.0) -> tuple[DbClock, Time]:
    now = Time(100.0)
    return DbClock(now=now, wall=lambda: wall), now


def test_before_any_reply_the_wall_clock_is_taken_and_said_to_be_a_guess() -> None:
    clock, _ = make()
    assert not clock.known
    assert clock.error_s == math.inf
    assert clock.to_monotonic(1_000_007.0) == 107.0


def test_a_reply_bounds_the_offset_by_half_its_round_trip() -> None:
    clock, now = make()
    assert clock.observe(2_000_000.0, sent=100.0, received=100.2)
    now.at = 100.2
    assert clock.known
    assert math.isclose(clock.error_s, 0.1)
    assert math.isclose(clock.now(), 2_000_000.1)
    assert math.isclose(clock.to_monotonic(clock.to_database(123.4)), 123.4, abs_tol=1e-6)


def test_a_slow_reply_does_not_spoil_a_good_estimate() -> None:
    clock, now = make()
    clock.observe(2_000_000.0, sent=100.0, received=100.002)
    now.at = 105.0
    assert not clock.observe(2_000_004.0, sent=103.0, received=105.0)
    assert abs(clock.now() - 2_000_004.999) < 0.002


def test_an_estimate_grows_old_and_is_replaced() -> None:
    clock, now = make()
    clock.observe(2_000_000.0, sent=100.0, received=100.002)
    now.at = 100.0 + 0.01 / DRIFT
    assert clock.error_s > 0.01
    assert clock.observe(2_000_000.0 + now.at - 100.0, sent=now.at - 0.005, received=now.at + 0.005)


def test_a_clock_that_was_set_is_followed_at_once() -> None:
    """After a failover another machine's clock answers; waiting for a better sample would start jobs wrongly."""
    clock, now = make()
    clock.observe(2_000_000.0, sent=100.0, received=100.002)
    now.at = 101.0
    assert clock.observe(1_999_000.0, sent=100.5, received=101.0)
    assert abs(clock.now() - 1_999_000.25) < 0.01


def test_nonsense_is_not_learnt() -> None:
    clock, _ = make()
    assert not clock.observe(math.nan, sent=1.0, received=2.0)
    assert not clock.observe(5.0, sent=2.0, received=1.0)
    assert not clock.known


def test_infinity_stays_infinity() -> None:
    """A parked job has run_at = infinity."""
    clock, _ = make()
    assert clock.to_monotonic(math.inf) == math.inf
    assert to_ns(math.inf) == 2**63 - 1
    assert to_ns(1.5) == 1_500_000_000


def test_remaining_never_goes_below_zero() -> None:
    assert remaining(10.0, now=4.0) == 6.0
    assert remaining(10.0, now=40.0) == 0.0
