"""A relay or a consumer in a process of its own, as a user starts it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.database import Database
from tests.support.waiting import wait_until

REPO = Path(__file__).resolve().parents[2]


class Role:
    """`supervisor relay` or `supervisor consume` with settings; its log as events."""

    def __init__(self, db: Database, command: str, **settings: Any) -> None:
        self.command = command
        self._db = db
        self._settings = {"log_format": "json", "lease_s": 3, **settings}
        handle, path = tempfile.mkstemp(prefix=f"{command}-", suffix=".log")
        os.close(handle)
        self.log = Path(path)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        env = {key: value for key, value in os.environ.items() if not key.startswith("SUPERVISOR_")}
        env["SUPERVISOR_DATABASE_URL"] = self._db.conninfo
        env |= {f"SUPERVISOR_{key.upper()}": str(value) for key, value in self._settings.items()}
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "supervisor", self.command],
                env=env, cwd=REPO, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """The log's events, or those of one name."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            if line.startswith("{"):
                event: dict[str, Any] = json.loads(line)
                if name is None or event.get("event") == name:
                    found.append(event)
        return found

    def wait_event(self, name: str, deadline_s: float = 30.0) -> dict[str, Any]:
        """The first event of that name."""
        return wait_until(lambda: self.events(name), deadline_s, f"{name} in {self.tail()}")[0]

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def stop(self, deadline_s: float = 20.0) -> int:
        """SIGTERM; its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(deadline_s)

    def kill9(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill9()
        self.log.unlink(missing_ok=True)
