"""How long a failed job waits.

The wait doubles with each attempt, up to a cap, and is spread by half either
way so that jobs that failed together do not come back together:

    least(cap, base * 2^attempts) * (0.5 + random())        seconds

The database computes it in the statement that records the failure (its clock,
one place); `Backoff` carries the two numbers and states the same formula.
A handler may give a function of the attempt instead; `evaluate` runs it in the
worker and lets nothing it does harm the job: a bad answer is the default wait.

Always true: a wait is finite and not negative, whatever the attempt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

#: The longest wait between two attempts, in seconds (30 days).
MAX_DELAY_S: Final = 30 * 86_400.0

BackoffFunction: TypeAlias = "Callable[[int], float | timedelta]"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Wait *base* seconds, doubled with each attempt, *cap* seconds at most; each wait times 0.5 to 1.5.

    ``Backoff(0)`` retries at once.
    """

    base: float = 1.0
    cap: float = 3600.0

    def __post_init__(self) -> None:
        for name, value in (("base", self.base), ("cap", self.cap)):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"backoff {name} must be seconds as a number, not {type(value).__name__}")
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"backoff {name} must be a finite number of seconds, 0 or more")
        if self.cap > MAX_DELAY_S:
            raise ValueError(f"backoff cap={self.cap:g} s is above the limit of {MAX_DELAY_S:g} s (30 days)")

    def upper(self, attempts: int) -> float:
        """The wait in seconds after *attempts* attempts, before it is spread; never above the cap."""
        # The exponent is bounded before the power is taken: 2.0**1024 would raise.
        exponent = min(max(attempts, 0), 1000)
        return min(float(self.cap), float(self.base) * 2.0**exponent)


def evaluate(function: BackoffFunction, attempt: int) -> tuple[float | None, str | None]:
    """Ask a handler's own backoff function for the wait after *attempt* (1 is the first).

    Returns:
        (seconds, None), or (None, what was wrong): then the default wait applies
        and the caller logs the problem. Never raises.
    """
    try:
        answer = function(attempt)
        seconds = answer.total_seconds() if isinstance(answer, timedelta) else answer
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            return None, f"backoff function returned {type(seconds).__name__}, not seconds"
        if not 0 <= seconds <= MAX_DELAY_S:  # NaN compares false with everything
            return None, f"backoff function returned a wait outside 0..{MAX_DELAY_S:g} s"
        return float(seconds), None
    except BaseException as error:
        return None, f"backoff function raised {type(error).__name__}"
