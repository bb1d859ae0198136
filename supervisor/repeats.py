"""Events that repeat: one of each is let through per interval, the others are counted.

    allow --first of its interval--> tell it, with the number held back before
          --again-----------------> held back, counted
    overdue: those that have held some back and have come no more

Always true: what was let through and what was held back add up to all there was, once `overdue` has told the rest;
at most *keys* events are remembered, the longest silent one is forgotten first.

Elsewhere: the lines (log.py).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any


class Repeats:
    """Lets one of each kind of event through per interval, and counts the others.

    >>> repeats = Repeats(every_s=1.0)
    >>> repeats.tell(log.warning, "database.unreachable", reason="connection refused")
    """

    def __init__(self, every_s: float = 1.0, *, now: Callable[[], float] = time.monotonic, keys: int = 1_000) -> None:
        self._every_s = every_s
        self._now = now
        self._keys = keys
        self._seen: OrderedDict[object, tuple[float, int]] = OrderedDict()

    def allow(self, key: object) -> int | None:
        """None if *key* had its turn within the interval, else how many were held back since then."""
        now = self._now()
        last, held = self._seen.get(key, (-1e18, 0))
        if now - last < self._every_s:
            self._seen[key] = (last, held + 1)
            return None
        self._seen[key] = (now, 0)
        self._seen.move_to_end(key)
        if len(self._seen) > self._keys:
            self._seen.popitem(last=False)
        return held

    def overdue(self, *, all_: bool = False) -> list[tuple[object, int]]:
        """The keys that have held some back and are quiet since, with how many; told by this, they start anew.

        With *all_* also those whose interval has not passed: before the process ends.
        """
        now = self._now()
        found = [
            (key, held) for key, (last, held) in self._seen.items() if held and (all_ or now - last >= self._every_s)
        ]
        for key, _ in found:
            self._seen[key] = (now, 0)
        return found

    def tell(self, method: Callable[..., Any], event: str, **fields: Any) -> None:
        """Log *event* by *method* unless it had its turn; `suppressed` says how many were held back."""
        held = self.allow(event)
        if held is not None:
            method(event, **fields, **({"suppressed": held} if held else {}))
