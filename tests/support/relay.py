"""A relay or a consumer in a process of its own, as a user starts it: with `health_port="auto"`, and its page."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from tests.support.database import Database
from tests.support.waiting import wait_until

REPO = Path(__file__).resolve().parents[2]


class Role:
    """`supervisor relay` or `supervisor consume` with settings; its log as events.

    Args:
        root: a directory with another release of the package.
        env: other variables.
    """

    def __init__(
        self, db: Database, command: str, *, root: Path = REPO, env: Mapping[str, str] | None = None, **settings: Any
    ) -> None:
        self.command = command
        self._db = db
        self._root = root
        self._env = dict(env or {})
        self._settings = {"log_format": "json", "lease_s": 3, "health_port": "off", **settings}
        handle, path = tempfile.mkstemp(prefix=f"{command}-", suffix=".log")
        os.close(handle)
        self.log = Path(path)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        env = {key: value for key, value in os.environ.items() if not key.startswith("SUPERVISOR_")}
        env["SUPERVISOR_DATABASE_URL"] = self._db.conninfo
        env |= {f"SUPERVISOR_{key.upper()}": str(value) for key, value in self._settings.items()}
        env |= self._env
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "supervisor", self.command],
                env=env, cwd=self._root, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
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

    def page(self, path: str) -> tuple[int, str]:
        """Status and text of its health page."""
        port = self.wait_event(f"{self.command}.page")["health_port"]
        try:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def ready(self) -> tuple[bool, list[str]]:
        """Whether /readyz says that events flow, and the reasons why not."""
        status, text = self.page("/readyz")
        return status == 200, json.loads(text)["reasons"]

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
