"""Lines on their way to a file descriptor, written by a thread of its own.

    put --bounded queue--> writer thread --> descriptor
             |
             +--full--> counted, told in a line of its own when there is room again

A reader that is slow or stopped must not stop the service (a full pipe blocks whoever writes to it): only the
writer thread ever waits for it.

Always true: `put` never waits and never raises, in a signal handler neither; after a fork the child has an empty
queue and its own thread; a descriptor that leads elsewhere than it did gets no line.

Elsewhere: what a line is (log.py).
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Final

MAX_LINES: Final = 4_000


def _plain_notice(lines: int) -> str:
    return json.dumps({"event": "log.dropped", "level": "warning", "lines": lines})


class Lines:
    """A queue of lines and its writer.

    Args:
        limit: The most lines that wait; what does not fit is counted in `dropped`.
        notice: Makes the line that tells of so many dropped ones.
    """

    def __init__(self, fd: int, *, limit: int = MAX_LINES, notice: Callable[[int], str] = _plain_notice) -> None:
        self._fd = fd
        self._notice = notice
        self._file = _identity(fd)
        self._limit = limit
        self._closed = False
        self.dropped = 0
        self._fresh()
        os.register_at_fork(after_in_child=self._fresh)

    def _fresh(self) -> None:
        # SimpleQueue.put may be interrupted by itself (a signal handler that logs); Queue.put may not.
        self._queue: queue.SimpleQueue[bytes | threading.Event] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()
        self._told = self.dropped

    def put(self, line: str) -> None:
        if self._closed:
            return
        if self._queue.qsize() >= self._limit:
            with self._lock:
                self.dropped += 1
            return
        self._queue.put(line.encode("utf-8", "backslashreplace") + b"\n")
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            return  # no more threads here: the line waits for the next one, and whoever logs is not hurt
        self._thread = thread

    def flush(self, timeout: float = 1.0) -> bool:
        """Wait until the lines put so far are written; False if *timeout* seconds were not enough."""
        if self._thread is None:
            return True
        done = threading.Event()
        self._queue.put(done)
        return done.wait(timeout)

    def close(self) -> None:
        self.flush()
        self._closed = True

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            missed = self.dropped - self._told
            if missed and self._queue.qsize() < self._limit // 2:
                self._told += missed
                item = (self._notice(missed) + "\n").encode() + item
            self._write(item)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                if _identity(self._fd) != self._file:
                    # A handler closed it, and something else got the number: a database connection, perhaps.
                    self.dropped += 1
                    return
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:  # someone made the pipe non-blocking; waiting is this thread's work
                time.sleep(0.02)
            except OSError:  # closed pipe, full disk: there is nowhere left to tell
                self.dropped += 1
                return


def _identity(fd: int) -> tuple[int, int]:
    """Which file *fd* leads to."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino
