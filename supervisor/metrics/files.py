"""Where each process writes its numbers.

Each process writes its numbers to mapped files of its own, and the parent adds
them up when asked; no process asks another. The files are named for the *slot*
(`parent`, `forkserver`, `w0`, `w1`, ...), not for the pid: a worker that takes
a slot over goes on counting where the dead one stopped.

    make_directory   parent, at start: a fresh directory
    setup(dir, slot) each process, before its first number; again after the fork
    clear_gauges     parent, when a worker died: what it was doing is over

Users' metrics take the same way. Handlers are imported in the fork server after
its `setup`, so whatever they create there moves to the worker's files on the
worker's `setup`. In processes that a handler forks, numbers go nowhere: two
writers of one file would make counters fall.

Always true: at most four files per slot and a few per gauge mode; a counter of
the page never falls while the service lives.

Elsewhere: adding the files up (page.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict

PARENT: Final = "parent"
FORK_SERVER: Final = "forkserver"

_ENV: Final = "PROMETHEUS_MULTIPROC_DIR"
_SLOT_NAME = re.compile(r"[a-z][a-z0-9]*")
# A gauge of these modes tells of a living process. Sums, extremes and the latest value outlive one.
_OF_THE_LIVING = ("all", "liveall", "livemin", "livemax", "livesum", "livemostrecent")


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
