"""The service under demonstration: `python -m supervisor run` as a subprocess, its log read as events.

Always true: when `close` returns, no process of it is left.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import supervisor
from supervisor.errors import SupervisorError

_LAST_LINES = 15


class DemoFailed(SupervisorError):
    """The demo could not go on; the text says at which fact, with the end of the service's log."""


class LabService:
    """One service. *settings* are its environment, by the settings' names."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._run_dir = tempfile.TemporaryDirectory(prefix="supervisor-demo-")
        self._lines: deque[str] = deque(maxlen=500)
        self._workers: dict[int, int] = {}
        self._started: dict[int, list[float]] = {}
        self._ready = threading.Event()
        kept = {key: value for key, value in os.environ.items() if not key.startswith("SUPERVISOR_")}
        given = {f"SUPERVISOR_{key.upper()}": str(value) for key, value in settings.items()}
        given["SUPERVISOR_RUN_DIR"] = self._run_dir.name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "supervisor", "run"],
            cwd=_where_handlers_are(),
            env={**kept, **given},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # ^C reaches the demo alone, which then stops it
        )
        self._reader = threading.Thread(target=self._read, name="service log", daemon=True)
        self._reader.start()

    # ---- its life

    def terminate(self) -> None:
        """Send SIGTERM to the parent."""
        self._process.send_signal(signal.SIGTERM)

    @property
    def exit_code(self) -> int | None:
        """The parent's exit code; None while it runs."""
        return self._process.poll()

    def kill_worker(self, slot: int) -> int:
        """SIGKILL the worker of *slot*; its pid."""
        pid = self._workers[slot]
        os.kill(pid, signal.SIGKILL)
        return pid

    def close(self) -> None:
        """End whatever is left of it."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(5)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._reader.join(2)
        self._run_dir.cleanup()

    # ---- what it says

    @property
    def ready(self) -> bool:
        """Whether all its workers are ready."""
        return self._ready.is_set()

    def worker(self, slot: int) -> int | None:
        """The pid of the slot's latest ready worker."""
        return self._workers.get(slot)

    def ready_after_s(self, slot: int, since: float) -> float | None:
        """Seconds from *since* (monotonic) until a worker of *slot* said that it is ready; None if none did."""
        return next((at - since for at in self._started.get(slot, []) if at > since), None)

    def last_words(self) -> str:
        """The end of its log, for an error."""
        found = []
        for line in list(self._lines)[-_LAST_LINES:]:
            try:
                event: dict[str, Any] = json.loads(line)
            except ValueError:
                found.append(line)
                continue
            if event.get("level") in ("warning", "error"):
                found.append(f"{event.get('event')}: {event.get('reason') or event.get('error') or ''}".strip(": "))
        return "; ".join(found) or "its log has no warnings"

    def _read(self) -> None:
        stream = self._process.stderr
        if stream is None:
            return
        for raw in stream:
            line = raw.decode(errors="replace").strip()
            self._lines.append(line)
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if not isinstance(event, dict):
                continue
            if event.get("event") == "worker.ready":
                slot = int(event["slot"])
                self._workers[slot] = int(event["pid"])
                self._started.setdefault(slot, []).append(time.monotonic())
            elif event.get("event") == "supervisor.ready":
                self._ready.set()


def _where_handlers_are() -> Path:
    """The directory that has handlers/lab.py: this one, or that of the source."""
    for place in (Path.cwd(), Path(supervisor.__file__).resolve().parents[1]):
        if (place / "handlers" / "lab.py").is_file():
            return place
    raise DemoFailed(
        "handlers/lab.py is not here: the demo's handlers come with the source; run `make demo` in a checkout"
    )
