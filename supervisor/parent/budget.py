"""How soon a child that crashed is started again.

Within its budget at once; beyond it with a delay that doubles up to a limit: never faster, never for good.
"""

import random
import time
from collections import deque
from typing import Final

from supervisor.settings import Settings

_WINDOW_S: Final = 60.0


class RestartBudget:
    """The crashes of one place in which children live, within the last minute."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._crashes: deque[float] = deque()

    def delay(self) -> float:
        """Note a crash; seconds until the next start."""
        now = time.monotonic()
        self._crashes.append(now)
        while self._crashes[0] < now - _WINDOW_S:
            self._crashes.popleft()
        over = len(self._crashes) - self._settings.restart_budget
        if over <= 0:
            return 0.0
        delay = self._settings.restart_backoff_s * 2.0 ** min(over - 1, 20)
        return min(self._settings.restart_backoff_cap_s, delay) * random.uniform(0.75, 1.25)
