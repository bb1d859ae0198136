"""The values that the labels "kind" and "queue" may have.

Handlers and settings name them, jobs do not: whatever else a job brings is counted as "other", so that
no number of names makes the page grow.

Always true: a label has at most `MAX_LABELS` values, and "other".
"""

import threading
from collections.abc import Iterable
from typing import Final

MAX_LABELS: Final = 100
OTHER: Final = "other"


class _Labels:
    """The values each label may take."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, None]] = {}
        self._lock = threading.Lock()

    def register(self, name: str, found: Iterable[str]) -> None:
        with self._lock:
            known = self._known.setdefault(name, {})
            for value in found:
                if len(known) >= MAX_LABELS:
                    return
                known[value] = None

    def bounded(self, name: str, value: str) -> str:
        return value if value in self._known.get(name, ()) else OTHER

    def known(self, name: str) -> tuple[str, ...]:
        return tuple(self._known.get(name, ()))


_labels = _Labels()


def register_labels(name: str, found: Iterable[str]) -> None:
    """Let label *name* ("kind", "queue") take these values: what handlers and settings name, never what jobs bring.

    The first `MAX_LABELS` are kept. Call it with the same values in the same order in each process.
    """
    _labels.register(name, found)


def bounded_label(name: str, value: str) -> str:
    """*value* if it was registered for label *name*, else "other"."""
    return _labels.bounded(name, value)


def known_labels(name: str) -> tuple[str, ...]:
    """The values registered for label *name*, in the order in which they came."""
    return _labels.known(name)
