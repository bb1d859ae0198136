"""Many who commit at once, and how many notifications that makes."""

import re
import subprocess
import tempfile
import threading
from collections import Counter
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql

from tests.support.database import Database
from tests.support.servers import Server


class Ear(threading.Thread):
    """Counts what the server sends to whoever listens, by the second of its arrival.

    Args:
        channel: of supervisors; relays listen to "supervisor.outbox".
    """

    def __init__(self, db: Database, channel: str = "supervisor") -> None:
        super().__init__(name="ear", daemon=True)
        self._conn: psycopg.Connection[Any] = db.connect()
        self._conn.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        self._over = threading.Event()
        self.heard = 0
        self.by_second: Counter[int] = Counter()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        self.join(10)

    def run(self) -> None:
        second = 0
        while not self._over.is_set():
            came = len(list(self._conn.notifies(timeout=1.0)))
            self.heard += came
            self.by_second[second] += came
            second += 1


def commits_per_s(server: Server, db: Database, write: str, clients: int, seconds: int) -> float:
    """Let so many clients of pgbench commit *write*, a script, for so long."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(write)
        script.flush()
        done = subprocess.run(
            [
                str(server.program("pgbench")), "-n", "-c", str(clients), "-j", "2", "-T", str(seconds),
                "-f", script.name, "-d", db.conninfo,
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    said = done.stdout + done.stderr
    tps = re.search(r"^tps = ([0-9.]+) \(without initial connection time\)", said, re.MULTILINE)
    assert done.returncode == 0, said
    assert tps is not None, said
    return float(tps[1])
