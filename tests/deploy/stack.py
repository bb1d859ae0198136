"""compose.yaml as a user brings it up: a clean copy of the checkout, its own project, nothing left behind.

    Stack.up() --> docker compose up --build --wait --> ask, stop, kill --> Stack.close(): down, volumes too

A scenario changes settings by a second compose file, written for it; the shipped one stays as it is.

Always true: what is copied is what git has or would add, so a file that was forgotten is missed here too.
"""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.rows import tuple_row

from tests.deploy.engine import docker
from tests.deploy.shipped import ROOT
from tests.support.waiting import wait_until

IMAGE: Final = "pg-supervisor:test"
HANDLERS: Final = Path("tests/deploy/handlers")
_PATIENCE_S: Final = 420.0
Row = tuple[Any, ...]


def clean_copy(into: Path) -> Path:
    """The checkout without what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source = ROOT / name
        if source.is_file():
            target = into / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    return into


class Stack:
    """One compose project.

    Args:
        checkout: a clean copy of this repository.
        ports: published ports of compose.yaml by their variable; each must be free.
    """

    def __init__(self, name: str, checkout: Path, **ports: int) -> None:
        self.name = name
        self.checkout = checkout
        self.env = {
            **{key: value for key, value in docker.environment().items() if not key.startswith("SUPERVISOR_")},
            **{key: str(port) for key, port in ports.items()},
            "IMAGE": IMAGE,
            "COMPOSE_PROJECT_NAME": name,
            "COMPOSE_PROGRESS": "plain",
        }
        self._change: Path | None = None
        self._conn: psycopg.Connection[Row] | None = None

    # -- the project

    def compose(self, *words: str, check: bool = True, timeout_s: float = _PATIENCE_S) -> str:
        """The output of a `docker compose` command; the test fails with all of it when it does."""
        files = ["-f", "compose.yaml", *(["-f", str(self._change)] if self._change else [])]
        done = self._run(["docker", "compose", *files, *words], timeout_s)
        if check:
            assert done.returncode == 0, f"compose {' '.join(words)}: {done.returncode}\n{done.stderr}\n{self.tail()}"
        return done.stdout

    def docker(self, *words: str, timeout_s: float = 60.0) -> str:
        """The output of a `docker` command."""
        done = self._run(["docker", *words], timeout_s)
        assert done.returncode == 0, f"docker {' '.join(words)}: {done.returncode}\n{done.stderr}"
        return done.stdout

    def _run(self, command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.checkout, env=self.env, capture_output=True, text=True, timeout=timeout_s
        )

    def change(self, *, replicas: int, mounted: bool = True, **settings: object) -> None:
        """Another fleet: its settings, and the handlers of tests/deploy mounted in place of the image's."""
        service: dict[str, Any] = {
            "deploy": {"replicas": replicas},
            "environment": {f"SUPERVISOR_{key.upper()}": str(value) for key, value in settings.items()},
        }
        if mounted:
            service["volumes"] = [f"./{HANDLERS}:/app/handlers:ro"]
        self._change = self.checkout / "change.yaml"
        self._change.write_text(json.dumps({"services": {"supervisor": service}}))
        self.compose("up", "--detach", "--wait", "supervisor")
        self.wait_ready(replicas)

    def close(self) -> None:
        """Away with containers, volumes and networks."""
        self.hang_up()
        self.compose("--profile", "*", "down", "--volumes", "--timeout", "2", check=False)

    def tail(self) -> str:
        """The last lines of every container's log."""
        return self._run(["docker", "compose", "logs", "--tail", "40", "--no-color"], 60.0).stdout

    # -- its containers

    def containers(self, service: str) -> list[str]:
        """Their ids, running or not."""
        return self.compose("--profile", "*", "ps", "--all", "--quiet", service).split()

    def inspect(self, container: str) -> dict[str, Any]:
        """All that the engine knows of a container."""
        [found] = json.loads(self.docker("inspect", container))
        return dict(found)

    def exec(self, container: str, *command: str) -> str:
        """The output of a program run in a container."""
        return self.docker("exec", container, *command)

    def supervisor(self, *words: str) -> str:
        """The output of a command of the service, run in its container."""
        return self.compose("exec", "--no-TTY", "supervisor", "supervisor", *words)

    def wait_ready(self, count: int) -> None:
        """Wait until *count* services say of themselves that they are ready."""

        def ready() -> bool:
            query = (
                "select count(*)::int from supervisor.parent where state = 'ready' and expires_at > clock_timestamp()"
            )
            return bool(self.value(query) == count)

        wait_until(ready, 60.0, f"{count} supervisors are ready")

    # -- its database

    def conninfo(self) -> str:
        """The address of the database, from the host."""
        url = self.exec(self.containers("db")[0], "cat", "/run/secrets/database_url").strip()
        return re.sub(r"@db:", f"@{self.host('db')}:", url)

    def host(self, service: str) -> str:
        """The address of a service's one container, from the host."""
        [container] = self.containers(service)
        networks = self.inspect(container)["NetworkSettings"]["Networks"]
        return str(next(iter(networks.values()))["IPAddress"])

    def hang_up(self) -> None:
        """Give the connection up: the database was stopped."""
        if self._conn is not None:
            self._conn.close()

    def rows(self, sql: str, *params: object) -> list[Row]:
        """The rows of a statement. On one connection for all, so that a fact of half a second is seen."""
        if self._conn is None or self._conn.closed or self._conn.broken:
            self._conn = psycopg.connect(self.conninfo(), autocommit=True, row_factory=tuple_row)
        cursor = self._conn.execute(sql, params or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, sql: str, *params: object) -> Any:
        """The first value of a statement."""
        [[found]] = self.rows(sql, *params)
        return found

    def enqueue(self, kind: str, payload: dict[str, Any], count: int = 1, **options: Any) -> list[int]:
        """Add equal jobs in one statement; their ids."""
        jobs = json.dumps([{"kind": kind, "payload": payload, **options}] * count)
        return [row[0] for row in self.rows("select id from supervisor.enqueue_many(%s::jsonb) order by ord", jobs)]

    def statuses(self, ids: list[int]) -> dict[str, int]:
        """How many of these jobs are in each status."""
        found = self.rows("select status, count(*)::int from supervisor.jobs where id = any(%s) group by 1", ids)
        return dict(found)

    def forget(self) -> None:
        """Away with all jobs; the services go on."""
        self.rows("truncate supervisor.job, supervisor.history, supervisor.dead_letter")


def timed(begun: float) -> float:
    """Seconds since *begun*."""
    return time.monotonic() - begun
