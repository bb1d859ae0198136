"""The supervisor as a real process tree, run against a test's database, its log read as events.

    with Service(db, processes=2, concurrency=5, lease_s=2) as service:
        service.wait_ready()
        ...
        assert service.stop(signal.SIGTERM) == 0

Settings are keywords: `lease_s=2` is SUPERVISOR_LEASE_S=2 in its environment.

The service leads a session of its own, and this process adopts orphans, so every process it
ever made is seen here. Always true: when `close` returns, none of them is left; and a
service that was stopped by `stop` must have left none itself, or `close` fails the test.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from tests.support import proc
from tests.support.database import Database
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).resolve().parents[2]
READY_DEADLINE_S: Final = 20.0
STOP_DEADLINE_S: Final = 40.0  # above the default drain timeout
LEFT_DEADLINE_S: Final = 3.0  # the fork server and its helper end a moment after the parent
SLOW_PIPE_BYTES: Final = 4096  # the least there is: full soon, where the log is read slowly
LAST_WORDS_S: Final = 1.0

Event = dict[str, Any]


class Service:
    """One `supervisor run`. Its log is in `log` (events) and `noise` (lines that are not JSON)."""

    def __init__(
        self,
        db: Database,
        *,
        handlers: str = "tests.support.handlers",
        log_bytes_per_s: int | None = None,
        env: dict[str, str] | None = None,
        root: Path = ROOT,
        arguments: Sequence[str] = (),
        **settings: object,
    ) -> None:
        """Prepare a service.

        Args:
            handlers: SUPERVISOR_HANDLERS; modules are found from the repository's root.
            log_bytes_per_s: Read its log no faster than this, as a slow collector does. None reads at once.
            env: Further environment, as is.
            arguments: Further words of its command line.
            root: The directory whose `supervisor` it runs; another one holds another release.
            settings: Named as in the settings module; None leaves the default.
        """
        self.db = db
        self.log: list[Event] = []
        self.noise: list[str] = []
        self._log_bytes_per_s = log_bytes_per_s
        self._root = root
        self._arguments = arguments
        self._changed = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._stopped = False
        self._killed = False
        self._stdout: IO[bytes] | None = None
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SUPERVISOR_", "PG"))}
        given = {
            f"SUPERVISOR_{key.rstrip('_').upper()}": str(value) for key, value in settings.items() if value is not None
        }
        self.env = {
            **kept,
            "PYTHONPATH": str(root),
            "PYTHONUNBUFFERED": "1",
            "EFFECTS_DATABASE_URL": db.conninfo,
            "SUPERVISOR_DATABASE_URL": db.conninfo,
            "SUPERVISOR_HANDLERS": handlers,
            "SUPERVISOR_LOG_FORMAT": "json",
            "SUPERVISOR_HEALTH_PORT": "0",  # several services run at once: a test that looks at it names a port
            "SUPERVISOR_PROCESSES": "2",
            **given,
            **(env or {}),
        }

    # -- life ---------------------------------------------------------------------------

    def start(self) -> None:
        self._stdout = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "supervisor", "run", *self._arguments],
            cwd=self._root,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=self._stdout,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        if self._log_bytes_per_s and self._process.stderr:
            fcntl.fcntl(self._process.stderr, fcntl.F_SETPIPE_SZ, SLOW_PIPE_BYTES)
        self._reader = threading.Thread(target=self._read_log, name=f"log of {self._process.pid}", daemon=True)
        self._reader.start()

    def wait_ready(self, deadline_s: float = READY_DEADLINE_S) -> None:
        """Return when the service says that it is ready."""
        self.wait_event("supervisor.ready", deadline_s)

    def send(self, sig: signal.Signals) -> None:
        """Send a signal to the parent."""
        os.kill(self.parent_pid, sig)

    def stop(self, sig: signal.Signals = signal.SIGTERM, deadline_s: float = STOP_DEADLINE_S) -> int:
        """Send *sig* to the parent and return its exit code."""
        self.send(sig)
        return self.wait_exit(deadline_s)

    def wait_exit(self, deadline_s: float = STOP_DEADLINE_S) -> int:
        """Return the parent's exit code, when it has exited by itself; its log is complete then."""
        process = self._running_process()
        try:
            code = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the service had not exited after {deadline_s:g} s\n{self.tail()}")
        self._stopped = True
        assert self._reader is not None
        self._reader.join(LEFT_DEADLINE_S)
        return code

    def kill(self) -> None:
        """SIGKILL the parent and nothing else; its workers may go on and log."""
        process = self._running_process()
        self._killed = True
        process.kill()
        process.wait(10)

    def close(self) -> None:
        """End every process of the service; fail if one outlived a stop."""
        if self._process is None:
            return
        outlived: list[str] = []
        if self._stopped:
            began = time.monotonic()
            while (left := self.processes()) and time.monotonic() - began < LEFT_DEADLINE_S:
                time.sleep(0.02)
            outlived = [f"{process.pid} {process.name} {proc.command_line(process.pid)}" for process in left]
        self._kill_all()
        assert self._reader is not None
        self._reader.join(5)
        if self._stdout:
            self._stdout.close()
            self._stdout = None
        if outlived:
            pytest.fail(f"processes outlived the service: {outlived}\n{self.tail()}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if exc is None:
            self.close()
            return
        sys.stderr.write(self.tail(100) + "\n")
        self._stopped = False  # the test has failed already: its own error is the one to show
        self.close()

    def _kill_all(self) -> None:
        process = self._running_process()

        def gone() -> bool:
            for one in self.processes():
                proc.kill(one.pid)
            process.poll()
            return not self.processes()

        if process.poll() is None:
            process.kill()
        wait_until(gone, 10, f"no process of service {process.pid} is left")
        process.wait(10)

    # -- processes ----------------------------------------------------------------------

    def _running_process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the service was not started"
        return self._process

    @property
    def parent_pid(self) -> int:
        return self._running_process().pid

    @property
    def alive(self) -> bool:
        return self._running_process().poll() is None

    def processes(self) -> list[proc.Process]:
        """Return every living process of the service: parent, fork server, workers, helpers."""
        return proc.in_session(self.parent_pid)

    def workers(self) -> dict[int, int]:
        """Return the living workers that said they are ready: slot -> pid."""
        alive = {process.pid for process in self.processes()}
        said = {int(event["slot"]): int(event["pid"]) for event in self.events("worker.ready")}
        return {slot: pid for slot, pid in sorted(said.items()) if pid in alive}

    def worker_pids(self) -> list[int]:
        """Return the pids of the ready workers, by slot."""
        return list(self.workers().values())

    def wait_workers(self, count: int, deadline_s: float = 10.0) -> list[int]:
        """Return the workers' pids when *count* of them are ready."""
        wait_until(lambda: len(self.worker_pids()) == count, deadline_s, f"{count} workers are ready")
        return self.worker_pids()

    # -- health -------------------------------------------------------------------------

    @property
    def health_port(self) -> int:
        """The port it chose; start it with health_port="auto"."""
        return int(self.wait_event("supervisor.ready")["health_port"])

    def get(self, path: str, timeout_s: float = 5.0) -> tuple[int, str]:
        """Ask its health server; the status and the page."""
        try:
            with urlopen(f"http://127.0.0.1:{self.health_port}{path}", timeout=timeout_s) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels, from its page; 0 without any."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        total = 0.0
        for line in self.get("/metrics")[1].splitlines():
            head, _, value = line.rpartition(" ")
            if head.partition("{")[0] == name and all(label in head for label in wanted):
                total += float(value)
        return total

    # -- log ----------------------------------------------------------------------------

    def events(self, name: str, **fields: object) -> list[Event]:
        """Return the log events so far with this name and these fields."""
        with self._changed:
            return [event for event in self.log if _matches(event, name, fields)]

    def wait_event(self, name: str, deadline_s: float = 10.0, *, count: int = 1, **fields: object) -> Event:
        """Return the *count*-th such event when it has come. A service that exits by itself ends the wait soon."""
        deadline = time.monotonic() + deadline_s
        leaving = False
        with self._changed:
            while True:
                found = [event for event in self.log if _matches(event, name, fields)]
                if len(found) >= count:
                    return found[count - 1]
                left = deadline - time.monotonic()
                if left <= 0 or self._log_ended():
                    break
                if not (leaving or self._killed or self.alive):
                    leaving = True  # what it said at the end is still on its way
                    deadline = min(deadline, time.monotonic() + LAST_WORDS_S)
                self._changed.wait(min(left, 0.2))
        code = self._running_process().poll()
        why = f"it exited with {code}" if code is not None else f"not within {deadline_s:g} s"
        pytest.fail(f"no event {name} {fields or ''} ({len(found)} of {count}): {why}\n{self.tail()}")

    def stdout(self) -> str:
        """Return what the parent has written to its standard output."""
        assert self._stdout is not None
        self._stdout.seek(0)
        return self._stdout.read().decode(errors="replace")

    def read_log_at_once(self) -> None:
        """No longer read the log slowly."""
        self._log_bytes_per_s = None

    def log_behind_s(self) -> float:
        """Return how old the newest line is that was read."""
        return time.time() - datetime.fromisoformat(self.log[-1]["timestamp"]).timestamp()

    def tail(self, lines: int = 40) -> str:
        """Return the end of the log, for a failure's text."""
        with self._changed:
            shown = [json.dumps(event, default=str) for event in self.log[-lines:]]
            noise = [line[:500] for line in self.noise[-lines:]]
            return "\n".join(["--- log", *shown, "--- other lines", *noise, "---"])

    def _log_ended(self) -> bool:
        return self._reader is not None and not self._reader.is_alive()

    def _read_log(self) -> None:
        stream = self._running_process().stderr
        assert stream is not None
        pending = b""
        with contextlib.closing(stream):
            while chunk := os.read(stream.fileno(), self._log_bytes_per_s or 65536):
                *lines, pending = (pending + chunk).split(b"\n")
                self._take(lines)
                if self._log_bytes_per_s:
                    time.sleep(len(chunk) / self._log_bytes_per_s)
        self._take([pending] if pending else [])
        with self._changed:
            self._changed.notify_all()

    def _take(self, lines: list[bytes]) -> None:
        with self._changed:
            for line in lines:
                text = line.decode(errors="replace")
                try:
                    event = json.loads(text)
                except ValueError:
                    event = None
                if isinstance(event, dict) and "event" in event:
                    self.log.append(event)
                elif text.strip():
                    self.noise.append(text)
            self._changed.notify_all()


def _matches(event: Event, name: str, fields: dict[str, object]) -> bool:
    return event.get("event") == name and all(event.get(key) == value for key, value in fields.items())


def password_of(conninfo: str) -> str:
    """Return the password as it stands in a URI, to look for in logs."""
    return urlsplit(conninfo).password or ""
