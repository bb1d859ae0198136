"""Numbers of many runs, added up in memory and written at once.

Writing one number to a mapped file costs a microsecond or two; a run has six. Added up first, a batch of
runs of one kind costs what a single one did.

    observe, inc   per run, in memory
    flush          per round trip to the database: to the files, where the page reads them

Always true: what was flushed is counted however the process ends; what was not is lost with it. Names
that jobs bring are kept from one flush to the next and no longer.
"""

from bisect import bisect_right
from typing import Any, Final

from prometheus_client import Counter, Histogram

from supervisor.metrics.labels import OTHER, bounded_label

Key = tuple[str, ...]
_BOUNDED: Final = ("queue", "kind")


class _Children:
    """A metric's children by raw label values; only those whose names are known stay."""

    def __init__(self, metric: Any, names: tuple[str, ...]) -> None:
        self._metric = metric
        self._names = names
        self._known: dict[Key, Any] = {}

    def __getitem__(self, key: Key) -> Any:
        child = self._known.get(key)
        if child is None:
            values = [
                bounded_label(name, value) if name in _BOUNDED else value
                for name, value in zip(self._names, key, strict=True)
            ]
            child = self._metric.labels(*values) if values else self._metric
            if OTHER not in values:
                self._known[key] = child
        return child


class BatchedCounter:
    """A counter that is written when flushed."""

    def __init__(self, counter: Counter, *names: str) -> None:
        self._children = _Children(counter, names)
        self._new: dict[Key, float] = {}

    def inc(self, key: Key = (), amount: float = 1) -> None:
        """Add to the child with these label values."""
        self._new[key] = self._new.get(key, 0) + amount

    def flush(self) -> None:
        """Write what is new."""
        if self._new:
            for key, amount in self._new.items():
                self._children[key].inc(amount)
            self._new.clear()


class BatchedHistogram:
    """A histogram that is written when flushed."""

    def __init__(self, histogram: Histogram, bounds: tuple[float, ...], *names: str) -> None:
        self._children = _Children(histogram, names)
        self._bounds = bounds
        self._new: dict[Key, list[float]] = {}

    def observe(self, value: float, key: Key = ()) -> None:
        """Note one value for the child with these label values."""
        row = self._new.get(key)
        if row is None:
            self._new[key] = [value]
        else:
            row.append(value)

    def flush(self) -> None:
        """Write what is new."""
        if self._new:
            for key, values in self._new.items():
                child = self._children[key]
                child._sum.inc(sum(values))
                values.sort()
                buckets: list[Any] = child._buckets
                below = 0
                for place, bound in enumerate(self._bounds):
                    upto = bisect_right(values, bound, below)
                    if upto > below:
                        buckets[place].inc(upto - below)
                        below = upto
                    if below == len(values):
                        break
                else:
                    buckets[len(self._bounds)].inc(len(values) - below)
            self._new.clear()
