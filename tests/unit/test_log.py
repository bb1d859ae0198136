"""Logs: one line per record, no password, and never a wait."""

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any, TextIO
from urllib.parse import quote

import pytest
import structlog

from supervisor import dsn, log
from supervisor.lines import Lines
from tests.support.waiting import wait_until
from tests.unit.test_settings import PASSWORDS, quoted


class Pipe:
    def __init__(self) -> None:
        self.read_fd, write_fd = os.pipe()
        self.stream: TextIO = os.fdopen(write_fd, "w")

    def text(self) -> str:
        assert log.flush(5)
        os.set_blocking(self.read_fd, False)
        parts = []
        while True:
            try:
                parts.append(os.read(self.read_fd, 1 << 20))
            except BlockingIOError:
                return b"".join(parts).decode()

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text().splitlines()]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    pipe = Pipe()
    yield pipe
    os.set_blocking(pipe.read_fd, True)
    os.close(pipe.read_fd)
    log.flush(5)
    log._lines = None
    pipe.stream.close()
    structlog.reset_defaults()
    root.handlers[:], root.level = before


def test_a_record_is_one_json_line_with_its_facts(pipe: Pipe) -> None:
    early = log.get_logger("supervisor.early")  # made before configure, as module globals are
    log.configure("json", stream=pipe.stream)
    early.info("job.released", job_id=41, reason="drain\nor not")
    early.debug("not.shown")
    [record] = pipe.records()
    stamp = record.pop("timestamp")
    assert stamp.endswith("Z")
    assert record == {
        "level": "info",
        "event": "job.released",
        "logger": "supervisor.early",
        "job_id": 41,
        "reason": "drain\nor not",
    }


def test_auto_is_json_where_no_one_watches_and_console_is_plain(pipe: Pipe) -> None:
    log.configure("auto", stream=pipe.stream)
    log.get_logger("x").info("job.released", job_id=1)
    assert len(pipe.records()) == 1
    log.configure("console", stream=pipe.stream)
    log.get_logger("x").info("job.released", job_id=1)
    text = pipe.text()
    assert "job.released" in text
    assert "job_id=1" in text
    assert "\x1b" not in text


def test_records_of_other_packages_take_the_same_way(pipe: Pipe) -> None:
    log.configure("json", "warning", stream=pipe.stream)
    logging.getLogger("psycopg.pool").warning("connecting to %s failed", "postgresql://bob:hush@db/shop")
    logging.getLogger("psycopg.pool").info("not shown")
    logging.getLogger("x").warning("broken %d", "arguments")
    [record] = pipe.records()
    assert record["event"] == "connecting to postgresql://bob:***@db/shop failed"
    assert record["logger"] == "psycopg.pool"


@pytest.mark.parametrize("password", PASSWORDS)
def test_passwords_are_hidden_in_any_shape(password: str) -> None:
    raw = f"postgresql://bob:{password}@db.example:5432/shop"
    encoded = f"postgres://bob:{quote(password, safe='')}@db.example/shop"
    pairs = f"host=db.example user=bob password={quoted(password)} dbname=shop"
    for text in (raw, encoded, pairs):
        for shape in (text, f"connecting to {text!r} failed", f"{text}\nsecond line", json.dumps({"url": text})):
            shown = dsn.mask(shape)
            assert password not in shown
            assert quote(password, safe="") not in shown
            assert "***" in shown
            for part in (part for part in password.replace("'", " ").replace("\\", " ").split() if len(part) > 3):
                assert part not in shown
    assert "db.example" in dsn.mask(raw)
    assert "second line" in dsn.mask(raw + "\nsecond line")
    assert "dbname=shop" in dsn.mask(pairs)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://db:5432/shop",
        "postgresql://bob@[::1]:5432/shop",
        "serving on http://127.0.0.1:9090/metrics",
        "password authentication failed for user bob",
        "at 12:30 mail went to a@b.example",
    ],
)
def test_what_is_no_secret_stays_readable(text: str) -> None:
    assert dsn.mask(text) == text


def test_no_password_in_fields_tracebacks_or_nested_values(pipe: Pipe) -> None:
    log.configure("json", stream=pipe.stream)
    logger = log.get_logger("x")
    try:
        raise ValueError("host=db password='hush hush'")
    except ValueError:
        logger.exception("database.failed", password="hush", deep={"a": ["pg://u:hush@h", {"password": "hush"}]})
    text = pipe.text()
    assert "hush" not in text
    assert "Traceback" in text


def test_values_that_cannot_be_written_do_not_raise(pipe: Pipe) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no text")

        __repr__ = __str__

    log.configure("json", stream=pipe.stream)
    logger = log.get_logger("x")
    logger.info("a", value=Broken(), lone="\ud800", long="x" * 50_000, many={str(i): "y" * 5000 for i in range(50)})
    logger.info("b", lone="\ud800", long="x" * 50_000, value=Broken())
    [first, second] = pipe.records()
    assert first["too_long"] > 64_000
    assert "RuntimeError" in second["value"]
    assert len(second["long"]) < 9_000


def test_a_reader_that_stops_costs_lines_and_never_time(pipe: Pipe) -> None:
    """Writing to the full pipe itself once stopped the whole service."""
    log.configure("json", stream=pipe.stream)
    logger = log.get_logger("x")
    began = time.monotonic()
    for number in range(20_000):
        logger.info("job.released", job_id=number, reason="x" * 100)
    assert time.monotonic() - began < 10
    dropped = log.dropped_lines()
    assert dropped > 10_000
    assert not log.flush(0.01)

    seen = bytearray()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set() and (data := os.read(pipe.read_fd, 65536)):
            seen.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: log.flush(1), what="the backlog is written")
    logger.info("last")
    wait_until(lambda: b'"last"' in seen, what="the last line is read")
    stop.set()
    logger.info("wake the reader")
    reader.join()
    records = [json.loads(line) for line in seen.decode().splitlines()]
    told = sum(record["lines"] for record in records if record["event"] == "log.dropped")
    assert told == dropped
    assert sum(record["event"] == "job.released" for record in records) == 20_000 - dropped


def test_a_signal_handler_may_log_in_the_middle_of_logging(pipe: Pipe) -> None:
    log.configure("json", stream=pipe.stream)
    logger = log.get_logger("x")
    count = 0

    def on_signal(*_: object) -> None:
        nonlocal count
        count += 1
        logger.info("signal.came", number=count)

    before = signal.signal(signal.SIGALRM, on_signal)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for number in range(2_000):
            logger.info("job.done", job_id=number)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    os.set_blocking(pipe.read_fd, True)
    stop = threading.Event()
    thread = threading.Thread(target=lambda: [os.read(pipe.read_fd, 65536) for _ in iter(stop.is_set, True)])
    thread.start()
    wait_until(lambda: log.flush(1))
    stop.set()
    logger.info("end")
    thread.join()
    assert count > 0


def test_a_forked_child_writes_its_own_lines_once(pipe: Pipe) -> None:
    log.configure("json", stream=pipe.stream)
    logger = log.get_logger("x")
    logger.info("parent.before")
    log.flush()
    pid = os.fork()
    if pid == 0:
        logger.info("child.inside")
        os._exit(0 if log.flush(5) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    logger.info("parent.after")
    assert [record["event"] for record in pipe.records()] == ["parent.before", "child.inside", "parent.after"]


def test_repeats_are_told_once_a_second_with_their_number() -> None:
    now = 100.0
    repeats = log.Repeats(now=lambda: now, keys=2)
    told: list[tuple[str, dict[str, Any]]] = []

    def method(event: str, **fields: Any) -> None:
        told.append((event, fields))

    for _ in range(5):
        repeats.tell(method, "database.unreachable", reason="refused")
    repeats.tell(method, "other.event")
    now = 101.5
    repeats.tell(method, "database.unreachable", reason="refused")
    assert told == [
        ("database.unreachable", {"reason": "refused"}),
        ("other.event", {}),
        ("database.unreachable", {"reason": "refused", "suppressed": 4}),
    ]
    for number in range(100):
        repeats.allow(number)
    assert len(repeats._seen) <= 2


def test_repeats_that_stop_still_owe_their_number() -> None:
    now = 100.0
    repeats = log.Repeats(now=lambda: now)
    for _ in range(5):
        repeats.allow("flood")
    repeats.allow("once")
    assert repeats.overdue() == []
    now = 101.0
    assert repeats.overdue() == [("flood", 4)]
    assert repeats.overdue(all_=True) == []
    repeats.allow("flood")
    assert repeats.overdue(all_=True) == [("flood", 1)]


def test_a_line_for_which_no_thread_can_be_started_hurts_nobody_and_comes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It once raised in whoever logged, which lost that one's work; and the writer was never started again."""
    reading, writing = os.pipe()
    writer = Lines(writing)

    def refused(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        writer.put("first")
    writer.put("second")
    assert writer.flush(5)
    assert os.read(reading, 100) == b"first\nsecond\n"
    os.close(reading)
    os.close(writing)


def test_a_number_that_leads_elsewhere_now_gets_no_line() -> None:
    """A handler may close fd 2; the next database connection gets its number, and must not get the log."""
    reading, writing = os.pipe()
    writer = Lines(writing)
    writer.put("first")
    assert writer.flush(5)
    other_reading, other_writing = os.pipe()
    os.dup2(other_writing, writing)
    writer.put("second")
    assert writer.flush(5)
    os.close(other_writing)
    os.close(writing)
    assert os.read(reading, 100) == b"first\n"
    assert os.read(other_reading, 100) == b""
    assert writer.dropped == 1
    os.close(reading)
    os.close(other_reading)
