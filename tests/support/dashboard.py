"""The dashboard as a real process, asked over HTTP as a browser or a script does.

    with Dashboard(db, dashboard_token="...") as dashboard:
        page = dashboard.get("/jobs")

Settings are keywords, as for Service. Always true: when `close` returns the process is gone.
"""

import re
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any, Final, Self

import httpx
import pytest

from tests.support.database import Database
from tests.support.service import ROOT, Service
from tests.support.waiting import wait_until

READY_DEADLINE_S: Final = 20.0
_TOKEN: Final = re.compile(r'name="form_token" value="([0-9a-f]{64})"')


class Dashboard:
    """One `supervisor dashboard`."""

    def __init__(
        self, db: Database | None, *arguments: str, env: dict[str, str] | None = None, **settings: object
    ) -> None:
        given = {"dashboard_port": "auto", **settings}
        self._env = (
            {
                key: value
                for key, value in Service(db, env=env).env.items()
                if key not in ("SUPERVISOR_HEALTH_PORT", "SUPERVISOR_PROCESSES")
            }
            if db
            else dict(env or {})
        )
        self._env |= {
            f"SUPERVISOR_{key.rstrip('_').upper()}": str(value) for key, value in given.items() if value is not None
        }
        self._arguments = arguments
        self._lines: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self.address = ""
        self.client = httpx.Client(timeout=20)

    def start(self) -> Self:
        """Start it and wait until it serves."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "supervisor", "dashboard", *self._arguments],
            cwd=ROOT,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        reader = threading.Thread(target=self._read, daemon=True)
        reader.start()
        self.address = self._process.stdout.readline().strip().rstrip("/")
        if not self.address:
            code = self._process.wait(READY_DEADLINE_S)
            pytest.fail(f"the dashboard did not start, exit code {code}: {self.log()}")
        self.client.base_url = httpx.URL(self.address)
        return self

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append(line)

    def log(self) -> str:
        """What it has logged."""
        return "".join(self._lines)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def close(self) -> int:
        """Stop it as a platform does; its exit code."""
        self.client.close()
        assert self._process is not None
        self._process.terminate()
        try:
            return self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            pytest.fail(f"the dashboard had not stopped 10 s after SIGTERM: {self.log()}")
        finally:
            for stream in (self._process.stdout, self._process.stderr):
                if stream is not None:
                    stream.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- asking -------------------------------------------------------------------------

    def get(self, path: str, **options: Any) -> httpx.Response:
        """Ask for a page."""
        return self.client.get(path, **options)

    def json(self, path: str) -> Any:
        """A page as JSON; it must be there."""
        answer = self.get(path, headers={"accept": "application/json"})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        return answer.json()

    def form_token(self, path: str = "/jobs") -> str:
        """The token of a page's forms, and the cookie that goes with it."""
        found = _TOKEN.search(self.get(path).text)
        assert found is not None, f"no form on {path}"
        return found[1]

    def order(self, path: str = "/jobs/order", *, form_page: str = "/jobs", **fields: Any) -> httpx.Response:
        """Send a form as its page would."""
        return self.client.post(path, data={"form_token": self.form_token(form_page), **fields})

    def wait_json(self, path: str, fact: Any, deadline_s: float = 10.0, what: str = "") -> Any:
        """A page's data, when *fact* is true of it."""
        seen: list[Any] = []

        def true() -> bool:
            seen[:] = [self.json(path)]
            return bool(fact(seen[0]))

        wait_until(true, deadline_s, what or f"{path} as expected")
        return seen[0]
