"""Time: the local monotonic clock, and the database's clock seen from it.

Every deadline in a process is a point on the monotonic clock, which no one can
set back. On Linux that clock is one for all processes of the machine, so a
point can be passed from parent to worker. Everything stored is in the
database's time. `DbClock` translates: each reply that carries the database's
now, with the moments of asking and answering, bounds the offset between the two.

    sent |------ database says T ------| received      T lies in between:
          offset = T - middle, wrong by at most half the round trip

Always true: `to_monotonic` and `to_database` are inverses under one offset; an
estimate is replaced by a better one, or by any that contradicts it (the
database's clock was set, or another server answers now).

Elsewhere: what is due when (parent); the times in the tables (db).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

DRIFT: Final = 200e-6  # how fast two quartz clocks may part, in seconds per second; NTP slews by up to 500e-6 at worst

monotonic = time.monotonic
monotonic_ns = time.monotonic_ns


def to_ns(seconds: float) -> int:
    """Seconds as nanoseconds, capped to what fits 63 bits; infinity is the cap."""
    return min(int(seconds * 1e9), 2**63 - 1) if seconds < 9.2e9 else 2**63 - 1


def remaining(deadline: float, now: float | None = None) -> float:
    """Seconds until *deadline*, a monotonic point; 0.0 when it has passed."""
    return max(0.0, deadline - (monotonic() if now is None else now))


class DbClock:
    """The database's clock, estimated on the monotonic one.

    Before the first observation it assumes that both machines agree on the
    wall clock, and `known` is false.
    """

    def __init__(self, *, now: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._now = now
        self._offset = wall() - now()
        self._error = math.inf
        self._at = now()

    @property
    def known(self) -> bool:
        return self._error < math.inf

    @property
    def error_s(self) -> float:
        """How far off the estimate may be now, in seconds; infinite before the first observation."""
        return self._error + DRIFT * (self._now() - self._at)

    def observe(self, database_s: float, sent: float, received: float) -> bool:
        """Learn from one reply.

        Args:
            database_s: The database's clock_timestamp(), seconds since 1970.
            sent: Monotonic time just before the statement was sent.
            received: Monotonic time just after the reply arrived.

        Returns:
            True if the estimate changed.
        """
        error = (received - sent) / 2
        if not (math.isfinite(database_s) and 0 <= error < math.inf):
            return False
        offset = database_s - (sent + received) / 2
        current = self.error_s
        contradicts = abs(offset - self._offset) > error + current
        if error > current and not contradicts:
            return False
        self._offset, self._error, self._at = offset, error, received
        return True

    def to_monotonic(self, database_s: float) -> float:
        """The monotonic point of a database time (seconds since 1970); infinities stay what they are."""
        return database_s - self._offset

    def to_database(self, monotonic_s: float) -> float:
        """The database time (seconds since 1970) of a monotonic point."""
        return monotonic_s + self._offset

    def now(self) -> float:
        """The database's time now, seconds since 1970."""
        return self.to_database(self._now())
