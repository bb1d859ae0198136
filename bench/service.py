"""`supervisor run`, as its users run it, for one round of a bench."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from bench import machine

ROOT: Final = Path(__file__).resolve().parent.parent
READY_DEADLINE_S: Final = 30.0
STOP_DEADLINE_S: Final = 40.0


class BenchService:
    """One service on one database; ready inside the block, stopped by SIGTERM at its end.

    Args:
        env: Variables for its handlers.
        settings: By their names; everything else has its default.
    """

    def __init__(self, database_url: str, env: dict[str, str] | None = None, /, **settings: object) -> None:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SUPERVISOR_", "PG"))}
        given = {f"SUPERVISOR_{key.upper()}": str(value) for key, value in settings.items()}
        self._env = {
            **kept,
            "SUPERVISOR_DATABASE_URL": database_url,
            "SUPERVISOR_HANDLERS": "bench.jobs",
            "SUPERVISOR_LOG_FORMAT": "json",
            "SUPERVISOR_HEALTH_PORT": "0",
            **given,
            **(env or {}),
        }
        self._run_dir = tempfile.TemporaryDirectory(prefix="bench-service-")
        self._env.setdefault("SUPERVISOR_RUN_DIR", self._run_dir.name)
        self._log = Path(self._run_dir.name) / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "supervisor", "run"],
                cwd=ROOT, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            self._wait_ready()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        code = self._end()
        if code != 0 and exc is None:
            raise RuntimeError(f"the service exited with {code}: {self.tail()}")

    @property
    def pid(self) -> int:
        """The parent's."""
        assert self._process is not None
        return self._process.pid

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log events of this name so far."""
        found = []
        for line in self._log.read_text(errors="replace").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and event.get("event") == name:
                found.append(event)
        return found

    def worker_pids(self) -> list[int]:
        """The ready workers."""
        return [int(event["pid"]) for event in self.events("worker.ready")]

    def cpu_s(self) -> dict[str, float]:
        """Processor time so far of the workers and of the parent."""
        return {"workers": sum(map(machine.cpu_s, self.worker_pids())), "parent": machine.cpu_s(self.pid)}

    def wait(self) -> None:
        """Wait until it has exited, having been signalled."""
        assert self._process is not None
        self._process.wait(STOP_DEADLINE_S)

    def check(self) -> None:
        """Raise if the service has exited."""
        assert self._process is not None
        if (code := self._process.poll()) is not None:
            raise RuntimeError(f"the service exited with {code}: {self.tail()}")

    def tail(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-1500:] if self._log.exists() else ""

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_DEADLINE_S
        while not self.events("supervisor.ready"):
            self.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"the service was not ready after {READY_DEADLINE_S:g} s: {self.tail()}")
            time.sleep(0.02)

    def _end(self) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            code = self._process.wait(10)
        return code
