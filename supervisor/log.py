"""Structured logs: one line per fact, written by a thread of its own.

    log.info("job.released", job_id=41, reason="drain")     events in the past tense, facts as fields

    logger --processors--> line --bounded queue--> writer thread --> stderr
                                       |
                                       +--full--> counted, told later as log.dropped

A reader of stderr that is slow or stopped must not stop the service (a full
pipe blocks whoever writes to it): only the writer thread ever waits for it.
Records of the standard library's logging, and so of other packages, take the
same way.

Always true: no line holds a password that `dsn.mask` knows of; a line is one
record; logging never raises and never blocks, in a signal handler neither.

Elsewhere: hiding passwords (dsn.py); counters (metrics.py).
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing.util
import os
import queue
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final, Literal, TextIO

import structlog

from supervisor.dsn import HIDDEN, SECRET_KEYWORDS, mask

__all__ = ["Lines", "Repeats", "configure", "dropped_lines", "flush", "get_logger", "mask"]

MAX_LINES: Final = 4_000
MAX_TEXT: Final = 8_000  # characters of one value: a traceback fits, a dump does not
MAX_LINE: Final = 64_000

Level = Literal["debug", "info", "warning", "error"]


class Lines:
    """Lines on their way to a file descriptor. `put` never waits; what does not fit is counted and dropped.

    After a fork the child has an empty queue and its own thread.
    """

    def __init__(self, fd: int, *, limit: int = MAX_LINES) -> None:
        self._fd = fd
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
                item = (_render({"event": "log.dropped", "level": "warning", "lines": missed}) + "\n").encode() + item
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

    def tell(self, method: Callable[..., Any], event: str, **fields: Any) -> None:
        """Log *event* by *method* unless it had its turn; `suppressed` says how many were held back."""
        held = self.allow(event)
        if held is not None:
            method(event, **fields, **({"suppressed": held} if held else {}))


def get_logger(name: str) -> Any:
    """A logger whose lines carry `logger=name`; may be called before `configure`."""
    return structlog.get_logger(name)


def configure(
    format: Literal["auto", "console", "json"] = "auto", level: Level = "info", stream: TextIO | None = None
) -> None:
    """Set up logging of this process; the last call counts.

    Args:
        format: auto is console on a terminal, else json.
        stream: Something with a file descriptor; None means stderr.
    """
    global _lines, _renderer
    out = stream or sys.stderr
    out.flush()
    terminal = out.isatty()
    if _lines is not None:
        _lines.close()
    if format == "json" or (format == "auto" and not terminal):
        _renderer = structlog.processors.JSONRenderer(default=_plain, ensure_ascii=False)
    else:
        _renderer = structlog.dev.ConsoleRenderer(
            colors=terminal, exception_formatter=structlog.dev.plain_traceback, pad_event_to=28
        )
    _lines = Lines(out.fileno())
    least = getattr(logging, level.upper())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            lambda logger, _method, event: _render({**event, "logger": logger.name}),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=_Sink,
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_StandardLibrary()]
    root.setLevel(least)
    # Ends of a service and of a worker process: the latter leaves by os._exit, past atexit.
    multiprocessing.util.Finalize(None, flush, exitpriority=100)


def flush(timeout: float = 1.0) -> bool:
    """Wait until all lines are written, *timeout* seconds at most: before the process ends."""
    return _lines is None or _lines.flush(timeout)


def dropped_lines() -> int:
    """Lines lost since `configure` because the reader of the log was too slow."""
    return 0 if _lines is None else _lines.dropped


_lines: Lines | None = None
_renderer: Callable[[Any, str, MutableMapping[str, Any]], str | bytes] = structlog.processors.JSONRenderer()
_stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
atexit.register(flush)


class _Sink:
    """What a structlog logger writes to."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def msg(self, line: str) -> None:
        if _lines is not None:
            _lines.put(line)

    debug = info = warning = warn = error = critical = exception = fatal = log = msg


class _StandardLibrary(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields: dict[str, Any] = {"event": record.getMessage(), "level": record.levelname.lower()}
            fields["logger"] = record.name
            if record.exc_info:
                fields["exc_info"] = record.exc_info
            if _lines is not None:
                _lines.put(_render(fields))
        except Exception:  # a broken __str__ of an argument: the record is lost, the caller is not
            self.format_failed = True


def _render(fields: MutableMapping[str, Any]) -> str:
    """One line of *fields*; the order matters: tracebacks are texts before passwords are hidden."""
    try:
        fields = _stamp(None, "", fields)
        fields = structlog.processors.format_exc_info(None, "", fields)
        ordered = {key: fields[key] for key in ("timestamp", "level", "event") if key in fields} | dict(fields)
        clean = {key: _clean(key, value) for key, value in ordered.items()}
        line = _renderer(None, "", clean)
        if len(line) > MAX_LINE:
            kept: dict[str, Any] = {
                key: clean[key] for key in ("event", "level", "timestamp", "logger") if key in clean
            }
            line = _renderer(None, "", {**kept, "too_long": len(line)})
    except Exception as error:  # of the renderer
        line = _renderer(None, "", {"event": "log.failed", "level": "error", "error": type(error).__name__})
    return line if isinstance(line, str) else line.decode()


def _clean(key: str, value: Any, depth: int = 0) -> Any:
    if key in SECRET_KEYWORDS:
        return HIDDEN
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping) and depth < 4:
        return {str(k): _clean(str(k), v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)) and depth < 4:
        return [_clean("", item, depth + 1) for item in value]
    try:
        text = value if isinstance(value, str) else str(value)
        length = len(text)
        text = mask(text[: 2 * MAX_TEXT])  # not all of a dump; more than is kept, since a cut may halve a password
    except Exception as error:  # the job's own types may be logged too
        return f"<{type(value).__name__} whose text failed with {type(error).__name__}>"
    return text if length <= MAX_TEXT else text[:MAX_TEXT] + f"... [cut: {length} characters]"


def _plain(value: Any) -> str:
    return mask(repr(value))
