"""A real Prometheus that scrapes what a test names, and is asked by its HTTP interface."""

import json
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.support.tools import missing
from tests.support.waiting import wait_until

SCRAPE_S = 1


def tool(name: str) -> str:
    """The path of `prometheus` or `promtool`."""
    return shutil.which(name) or missing(f"{name} is not installed: apt install prometheus")


class Prometheus:
    """Runs while its `with` block does; *port*: the health port of the service to scrape, as job "supervisor"."""

    def __init__(self, port: int, rules: Path | None = None) -> None:
        self._target = f"127.0.0.1:{port}"
        self._rules = rules
        self._dir = Path(tempfile.mkdtemp(prefix="prometheus-"))
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self._port = sock.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        config = {
            "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
            "rule_files": [str(self._rules)] if self._rules else [],
            "scrape_configs": [{"job_name": "supervisor", "static_configs": [{"targets": [self._target]}]}],
        }
        (self._dir / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        with (self._dir / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    tool("prometheus"),
                    f"--config.file={self._dir / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._dir / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until(self._is_ready, 30, "Prometheus is ready")
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
        shutil.rmtree(self._dir, ignore_errors=True)

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._dir / "log").read_text()[-2000:]
        try:
            with urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=5) as answer:
                return int(answer.status) == 200
        except (HTTPError, URLError, OSError):
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query; fails with Prometheus' words if it is not one."""
        url = f"http://127.0.0.1:{self._port}/api/v1/query?{urlencode({'query': expression})}"
        try:
            with urlopen(url, timeout=30) as answer:
                found = json.load(answer)
        except HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
        result: list[dict[str, Any]] = found["data"]["result"]
        return result

    def api(self, path: str) -> Any:
        """The data of another page of the interface, such as rules or label/__name__/values."""
        with urlopen(f"http://127.0.0.1:{self._port}/api/v1/{path}", timeout=30) as answer:
            return json.load(answer)["data"]
