"""Structured logs: one line per fact.

    log.info("job.released", job_id=41, reason="drain")     events in the past tense, facts as fields

    structlog ------------+--> what is bound --> passwords hidden --> line --> writer thread --> stderr
    standard `logging` ---+

What is bound stands on every line: `bind_process` for the lines of this process, `bind` for those of the job
that runs here (a context variable: each asyncio task and each handler's thread has its own), `add_source` for
what is looked up for each line, as the current span. A field that a line names itself is left as it is.

Always true: no line holds a password that `dsn.mask` knows of; a line is one
record; logging never raises and never blocks, in a signal handler neither.

Elsewhere: the writer thread (lines.py); what is told once an interval (repeats.py); hiding passwords (dsn.py);
counters (metrics); what is bound for a job (worker/run.py).
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing.util
import sys
import threading
from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any, Final, Literal, TextIO

import structlog

from supervisor.dsn import HIDDEN, SECRET_KEYWORDS, mask
from supervisor.lines import Lines
from supervisor.repeats import Repeats

__all__ = [
    "Repeats",
    "add_source",
    "adopt_strays",
    "bind",
    "bind_process",
    "configure",
    "dropped_lines",
    "enabled",
    "flush",
    "get_logger",
    "mask",
]

MAX_TEXT: Final = 8_000  # characters of one value: a traceback fits, a dump does not
MAX_LINE: Final = 64_000

Level = Literal["debug", "info", "warning", "error"]
Fields = Callable[[], Mapping[str, Any]]

_ORDER: Final = ("timestamp", "level", "event")
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}  # not given by `extra=`

_process: dict[str, Any] = {}
_bound: ContextVar[Fields | None] = ContextVar("supervisor_log_fields", default=None)
_sources: list[Fields] = []


def bind_process(**fields: Any) -> None:
    """From now on each line of this process carries *fields*."""
    _process.update(fields)


def bind(fields: Fields) -> None:
    """From here on each line of this context (asyncio task, or thread) carries what *fields* returns.

    It is called for each line and not before: binding costs the same for a job that logs nothing.
    """
    _bound.set(fields)


def add_source(fields: Fields) -> None:
    """From now on each line of this process carries what *fields* returns when the line is written."""
    if fields not in _sources:
        _sources.append(fields)


def enabled(level: Level) -> bool:
    """Whether lines of *level* are written: to ask before one is made, where jobs pass by the thousand."""
    return logging.getLevelNamesMapping()[level.upper()] >= _least


def _bound_fields() -> dict[str, Any]:
    bound = _bound.get()
    found = dict(_process)
    if bound is not None:
        found.update(bound())
    for source in _sources:
        found.update(source())
    return found


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
    global _lines, _renderer, _least
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
    _lines = Lines(out.fileno(), notice=_dropped_notice)
    _least = getattr(logging, level.upper())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            lambda logger, _method, event: _render({**event, "logger": logger.name}),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_least),
        logger_factory=_Sink,
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_StandardLibrary()]
    root.setLevel(_least)
    # Ends of a service and of a worker process: the latter leaves by os._exit, past atexit.
    multiprocessing.util.Finalize(None, flush, exitpriority=100)


def adopt_strays() -> None:
    """From now on what Python would print of errors that nobody catches, in threads and finalizers, and of warnings,
    is a line of the log as others are: one record, without passwords."""
    stray = get_logger("python")

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit:
            error = (args.exc_type, args.exc_value, args.exc_traceback)
            stray.error("thread.failed", thread=args.thread.name if args.thread else None, exc_info=error)

    def unraisable(args: sys.UnraisableHookArgs) -> None:
        error = (args.exc_type, args.exc_value, args.exc_traceback)
        stray.error("error.unraisable", where=args.err_msg or repr(args.object), exc_info=error)

    threading.excepthook = in_thread
    sys.unraisablehook = unraisable
    logging.captureWarnings(True)


def flush(timeout: float = 1.0) -> bool:
    """Wait until all lines are written, *timeout* seconds at most: before the process ends."""
    return _lines is None or _lines.flush(timeout)


def dropped_lines() -> int:
    """Lines lost since `configure` because the reader of the log was too slow."""
    return 0 if _lines is None else _lines.dropped


_lines: Lines | None = None
_least = logging.INFO
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
            for key, value in vars(record).items():  # what `extra=` gave
                if key not in _STANDARD:
                    fields.setdefault(key, value)
            if _lines is not None:
                _lines.put(_render(fields))
        except Exception:  # a broken __str__ of an argument: the record is lost, the caller is not
            self.format_failed = True


def _dropped_notice(lines: int) -> str:
    return _render({"event": "log.dropped", "level": "warning", "lines": lines})


def _render(fields: MutableMapping[str, Any]) -> str:
    """One line of *fields*; the order matters: tracebacks are texts before passwords are hidden."""
    try:
        fields = _stamp(None, "", fields)
        fields = structlog.processors.format_exc_info(None, "", fields)
        ordered = {key: fields[key] for key in _ORDER if key in fields} | dict(fields)
        for key, value in _bound_fields().items():
            ordered.setdefault(key, value)
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
