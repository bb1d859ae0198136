"""The page that Prometheus reads: the files of all slots added up, and the facts that the parent knows.

Always true: making it asks no database and no process. A file that a dying process left half made is
passed over; files of pids are not ours (programs that a handler started inherit the environment).
"""

import glob
import json
import os
from collections.abc import Container, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_SUMMED: Final = ("counter", "histogram", "summary")


class _Files(Collector):
    """All files of a directory, added up."""

    def __init__(self, directory: str | os.PathLike[str], only: Container[str] | None) -> None:
        self._directory = directory
        self._only = only

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        for metric in _sums(self._directory):
            if self._only is None or metric.name in self._only:
                yield metric
        gauges = list(_files(self._directory, "gauge_*.db"))
        for _ in range(3):  # gauge files come and go with their workers
            try:
                merged = MultiProcessCollector.merge(gauges)  # type: ignore[no-untyped-call]
                yield from (metric for metric in merged if self._only is None or metric.name in self._only)
                return
            except Exception:
                gauges = [name for name in gauges if _readable(name)]


def _sums(directory: str | os.PathLike[str]) -> Iterable[Metric]:
    """What is not a gauge: added up by key first, then read once. With many workers that is most of the work."""
    metrics: dict[str, Metric] = {}
    for kind in _SUMMED:
        totals: dict[str, float] = {}
        for file in _files(directory, f"{kind}_*.db"):
            for key, value in _entries(file):
                totals[key] = totals.get(key, 0.0) + value
        for key, value in totals.items():
            name, sample, labels, text = json.loads(key)
            metric = metrics.get(name)
            if metric is None:
                metric = metrics[name] = Metric(name, text, kind)
            metric.add_sample(sample, tuple(sorted(labels.items())), value)  # type: ignore[arg-type]
    found: Iterable[Metric] = MultiProcessCollector._accumulate_metrics(metrics, True)  # type: ignore[no-untyped-call]
    return found


def _entries(file: str) -> list[tuple[str, float]]:
    """Keys and values of a file; none of one that is half made, or gone."""
    try:
        return [(key, value) for key, value, *_ in MmapedDict.read_all_values_from_file(file)]  # type: ignore[no-untyped-call]
    except Exception:
        return []


def _files(directory: str | os.PathLike[str], pattern: str) -> Iterator[str]:
    return filter(_ours, glob.iglob(os.path.join(glob.escape(os.fspath(directory)), pattern)))


def _ours(name: str) -> bool:
    return not os.path.basename(name).rpartition("_")[2].removesuffix(".db").isdigit()


def _readable(name: str) -> bool:
    try:
        MultiProcessCollector.merge([name])  # type: ignore[no-untyped-call]
    except Exception:
        return False
    return True


def render(
    directory: str | os.PathLike[str], facts: Iterable[Collector] = (), *, only: Container[str] | None = None
) -> bytes:
    """The page in Prometheus' text format: all slots added up, *facts*, and the process metrics of the caller.

    Args:
        only: Of what processes write these metrics, without `_total`; None: everything.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Files(directory, only))
    for fact in facts:
        registry.register(fact)
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def totals(directory: str | os.PathLike[str], name: str, *labels: str, slot: str = "*") -> dict[tuple[str, ...], float]:
    """Counter *name* added up over all slots (or of one), by these of its labels; for the parent's own use."""
    found: dict[tuple[str, ...], float] = {}
    start = f'["{name.removesuffix("_total")}'
    for file in _files(directory, f"counter_{slot}.db"):
        for key, value in _entries(file):
            if key.startswith(start):
                _, sample, given, *_ = json.loads(key)
                if sample == name:
                    place = tuple(given[label] for label in labels)
                    found[place] = found.get(place, 0.0) + value
    return found
