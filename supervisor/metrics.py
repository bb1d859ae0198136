"""Counters and gauges of all processes of a service, and the page that shows them.

Each process writes its numbers to mapped files of its own, and the parent adds
them up when asked; no process asks another. The files are named for the *slot*
(`parent`, `forkserver`, `w0`, `w1`, ...), not for the pid: a worker that takes
a slot over goes on counting where the dead one stopped.

    make_directory   parent, at start: a fresh directory
    setup(dir, slot) each process, before its first number; again after the fork
    clear_gauges     parent, when a worker died: what it was doing is over
    render           health server: the sum of all files

Users' metrics take the same way. Handlers are imported in the fork server after
its `setup`, so whatever they create there moves to the worker's files on the
worker's `setup`. In processes that a handler forks, numbers go nowhere: two
writers of one file would make counters fall.

Always true: at most four files per slot and a few per gauge mode; a counter of
the page never falls while the service lives; a label has at most `MAX_LABELS`
values, which handlers and settings have named, and "other".
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

PARENT: Final = "parent"
FORK_SERVER: Final = "forkserver"
MAX_LABELS: Final = 100
OTHER: Final = "other"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_ENV: Final = "PROMETHEUS_MULTIPROC_DIR"
_SLOT_NAME = re.compile(r"[a-z][a-z0-9]*")
# A gauge of these modes tells of a living process. Sums, extremes and the latest value outlive one.
_OF_THE_LIVING = ("all", "liveall", "livemin", "livemax", "livesum", "livemostrecent")

RUN_SECONDS: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
WAIT_SECONDS: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5, 15, 60, 300, 1800, 7200)
ACK_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30)
BATCH_SIZES: Final = (0, 1, 2, 5, 10, 20, 50, 100, 200)


class _Slot(str):
    """A slot's name that equals only itself, so that prometheus_client opens its files anew after each `setup`."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other


_slot: _Slot | None = None
_value_class: Any = None
_metrics: Metrics | None = None
_lock_fds: dict[str, int] = {}


def make_directory(run_dir: Path) -> Path:
    """A fresh directory for this service's files; those of services that ended are removed.

    It is locked while this process lives (a lock, unlike a pid, means the same in every container).
    """
    run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    for old in run_dir.glob("metrics-*"):
        with contextlib.suppress(OSError):
            fd = os.open(old / "lock", os.O_RDWR)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old, ignore_errors=True)
            finally:
                os.close(fd)
    # Locked under a name that is not looked for, then renamed: a sibling that starts now never sees it unlocked.
    fresh = Path(tempfile.mkdtemp(prefix="new-metrics-", dir=run_dir))
    fd = os.open(fresh / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    directory = fresh.rename(run_dir / fresh.name.removeprefix("new-"))
    _lock_fds[str(directory)] = fd
    return directory


def remove_directory(directory: Path) -> None:
    """At the end of the service."""
    shutil.rmtree(directory, ignore_errors=True)
    fd = _lock_fds.pop(str(directory), None)
    if fd is not None:
        os.close(fd)


def setup_fork_server() -> None:
    """In the fork server, before it imports handlers: the directory is the one of the parent that started it."""
    if directory := os.environ.get(_ENV):
        setup(directory, FORK_SERVER)


def setup(directory: str | os.PathLike[str], slot: str) -> None:
    """Count in *slot*'s files of *directory* from now on: every metric of this process, present and future.

    At most one living process per slot. Gauges of the slot's last owner start anew, counters go on.
    """
    global _slot, _value_class
    if not _SLOT_NAME.fullmatch(slot):
        raise ValueError(f"slot {slot!r}: a name is lower case letters and digits")
    os.environ[_ENV] = os.fspath(directory)
    values.MmapedDict = MmapedDict  # type: ignore[attr-defined]
    clear_gauges(directory, slot)
    _slot = _Slot(slot)
    if _value_class is None:
        _value_class = values.MultiProcessValue(lambda: _slot)  # type: ignore[no-untyped-call]
        values.ValueClass = _value_class
        os.register_at_fork(after_in_child=_lose_numbers)


class _Nowhere:
    """Stands in for a mapped file."""

    def __init__(self, filename: str) -> None:
        self._values: dict[str, tuple[float, float]] = {}

    def read_value(self, key: str) -> tuple[float, float]:
        return self._values.get(key, (0.0, 0.0))

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        self._values[key] = (value, timestamp)

    def close(self) -> None: ...


def _lose_numbers() -> None:
    """In a forked process until it calls `setup`, which a worker does at once and a handler's own child never."""
    global _slot
    values.MmapedDict = _Nowhere  # type: ignore[attr-defined,assignment]
    _slot = _Slot(_slot or FORK_SERVER)


def clear_gauges(directory: str | os.PathLike[str], slot: str) -> None:
    """Forget what a dead process of *slot* was doing. What it had done stays counted."""
    for mode in _OF_THE_LIVING:
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(directory, f"gauge_{mode}_{slot}.db"))


class _Files(Collector):
    """All files of a directory, added up. A file that a dying process left half made is passed over."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = directory

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        files = [
            name for name in glob.glob(os.path.join(glob.escape(os.fspath(self._directory)), "*.db")) if _ours(name)
        ]
        for _ in range(3):  # gauge files come and go with their workers
            try:
                return iter(MultiProcessCollector.merge(files))  # type: ignore[no-untyped-call]
            except Exception:
                files = [name for name in files if _readable(name)]
        return iter(())


def _ours(name: str) -> bool:
    """Not one of a pid: those come from programs a handler started, which inherit the environment."""
    return not os.path.basename(name).rpartition("_")[2].removesuffix(".db").isdigit()


def _readable(name: str) -> bool:
    try:
        MultiProcessCollector.merge([name])  # type: ignore[no-untyped-call]
    except Exception:
        return False
    return True


def render(directory: str | os.PathLike[str]) -> bytes:
    """The page in Prometheus' text format: all slots added up, and the process metrics of the caller."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Files(directory))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Labels:
    """The values each label may take."""

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def register(self, name: str, found: Iterable[str]) -> None:
        with self._lock:
            known = self._known.setdefault(name, set())
            for value in found:
                if len(known) >= MAX_LABELS:
                    return
                known.add(value)

    def bounded(self, name: str, value: str) -> str:
        return value if value in self._known.get(name, ()) else OTHER


_labels = _Labels()


def register_labels(name: str, found: Iterable[str]) -> None:
    """Let label *name* ("kind", "queue") take these values: what handlers and settings name, never what jobs bring.

    The first `MAX_LABELS` are kept. Call it with the same values in the same order in each process.
    """
    _labels.register(name, found)


def bounded_label(name: str, value: str) -> str:
    """*value* if it was registered for label *name*, else "other"."""
    return _labels.bounded(name, value)


class Metrics:
    """The service's own metrics. Made by `metrics()`, after `setup`; in other processes they count for no one."""

    def __init__(self) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"supervisor_{name}", text, labels, registry=None)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"supervisor_{name}", text, labels, registry=None, multiprocess_mode="livesum")

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"supervisor_{name}", text, labels, registry=None, buckets=buckets)

        self.jobs = counter("jobs_total", "Runs that ended, by outcome.", "queue", "kind", "outcome")
        self.job_run_seconds = histogram("job_run_seconds", "Time in the handler.", RUN_SECONDS, "queue", "kind")
        self.job_wait_seconds = histogram("job_wait_seconds", "From due to started.", WAIT_SECONDS, "queue")
        self.unknown_kinds = counter("unknown_kinds_total", "Jobs put back since this worker has no such handler.")
        self.claims = counter("claims_total", "Claim statements.")
        self.claim_batch = histogram("claim_batch", "Jobs per claim.", BATCH_SIZES)
        self.ack_seconds = histogram("ack_seconds", "From a result to its commit.", ACK_SECONDS)
        self.leases_lost = counter("leases_lost_total", "Results dropped: the lease had passed to another.")
        self.released = counter("released_total", "Jobs given back unstarted or uncharged.", "reason")
        self.reaped = counter("reaped_total", "Jobs taken from holders that stopped renewing.")
        self.crashes = counter("crashes_total", "Workers that died, by signal or exit code.", "signal")
        self.restarts = counter("restarts_total", "Workers started in place of another.", "reason")
        self.workers = gauge("workers", "Workers by state.", "state")
        self.slots_busy = gauge("slots_busy", "Jobs running now.")
        self.pool_connections = gauge("pool_connections", "Database connections of workers.", "state")
        self.listening = gauge("listening", "1 while LISTEN works, 0 while jobs are found by polling.")
        self.wakes = counter("wakes_total", "Workers woken.", "reason")
        self.errors = counter("errors_total", "Failures of the service itself, by place.", "where")
        self.log_lines_dropped = counter("log_lines_dropped_total", "Log lines lost to a slow reader.")
        self._children: dict[tuple[str, str, str], tuple[Any, Any]] = {}
        self._waits: dict[str, Any] = {}

    def job_ended(self, queue: str, kind: str, outcome: str, run_s: float) -> None:
        """Count a run; queue and kind as they are, unknown ones become "other"."""
        found = self._children.get((queue, kind, outcome))
        if found is None:
            queue, kind = bounded_label("queue", queue), bounded_label("kind", kind)
            found = (self.jobs.labels(queue, kind, outcome), self.job_run_seconds.labels(queue, kind))
            if queue != OTHER and kind != OTHER:  # what jobs bring must not fill this dictionary either
                self._children[queue, kind, outcome] = found
        found[0].inc()
        found[1].observe(run_s)

    def job_started(self, queue: str, wait_s: float) -> None:
        """Note how long a due job waited."""
        found = self._waits.get(queue)
        if found is None:
            queue = bounded_label("queue", queue)
            found = self._waits[queue] = self.job_wait_seconds.labels(queue)
        found.observe(max(0.0, wait_s))


def metrics() -> Metrics:
    """This process's metrics, made on first use."""
    global _metrics
    if _metrics is None:
        _metrics = Metrics()
    return _metrics
