"""A PostgreSQL 18 of the bench's own: durable, over TCP, with the settings of a small real server.

    with BenchServer() as server:
        server.create("round_1")
        psycopg.connect(server.conninfo("round_1"))

Always true: fsync, full_page_writes and synchronous_commit are on. The server, its files and its port are gone
when the block ends; a bench that is killed leaves a directory bench-pg-* in the temporary one.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psycopg

from bench import machine
from supervisor.db.pginstall import AsUser, find_programs, server_account

VERSION: Final = 18
START_DEADLINE_S: Final = 60.0
SHOWN: Final = (
    "server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size",
    "wal_level", "autovacuum", "jit",
)  # fmt: skip

_CONFIG: Final = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 300
shared_buffers = 512MB
max_wal_size = 4GB
checkpoint_timeout = 15min
log_checkpoints = off
"""


class BenchServer:
    """One server, running inside the block.

    Args:
        directory: Where its files go, on the disk to measure. None means the temporary directory.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._account = server_account()
        self.programs = find_programs(VERSION, self._account)
        self.home = Path(tempfile.mkdtemp(prefix="bench-pg-", dir=directory))
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._end()

    def conninfo(self, database: str = "postgres") -> str:
        """The URI of *database*."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement outside a transaction."""
        with psycopg.connect(self.conninfo(database), autocommit=True) as conn:
            done = conn.execute(statement.encode())
            return done.fetchall() if done.description else []

    def create(self, database: str) -> str:
        """Make an empty database; its URI."""
        self.execute(f"create database {database} template template0")
        return self.conninfo(database)

    def drop(self, database: str) -> None:
        """Drop it, whoever is connected."""
        self.execute(f"drop database {database} with (force)")

    def settings(self) -> dict[str, str]:
        """The settings that figures depend on."""
        return {name: str(self.execute(f"show {name}")[0][0]) for name in SHOWN}

    def log(self) -> bytes:
        """What the server has logged."""
        return (self.home / "postgres.log").read_bytes()

    def cpu_s(self) -> float:
        """Processor time so far, of the processes that have ended too."""
        return machine.cpu_s(self.pid) + sum(map(machine.cpu_s, machine.children(self.pid)))

    @property
    def pid(self) -> int:
        """The postmaster."""
        assert self._process is not None
        return self._process.pid

    def _start(self) -> None:
        as_user = self._account.as_user() if self._account else AsUser(user=None, group=None, extra_groups=None)
        if self._account:
            os.chown(self.home, self._account.uid, self._account.gid)
        data = self.home / "data"
        env = {key: value for key, value in os.environ.items() if not key.startswith(("PG", "LC_", "LANG"))}
        words = "-U postgres --auth=trust --encoding=UTF8 --locale=C --no-instructions"
        made = subprocess.run(
            [str(self.programs / "initdb"), "-D", str(data), *words.split()],
            cwd="/", env=env, capture_output=True, text=True, check=False, **as_user,
        )  # fmt: skip
        if made.returncode != 0:
            raise RuntimeError(f"initdb failed: {made.stderr.strip()[-500:]}")
        with (data / "postgresql.conf").open("a") as file:
            file.write(f"{_CONFIG}port = {self.port}\n")
        log = self.home / "postgres.log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [str(self.programs / "postgres"), "-D", str(data)],
                cwd="/", env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, **as_user,
            )  # fmt: skip
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            try:
                psycopg.connect(self.conninfo(), connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL did not start: {log.read_text()[-500:]}") from None
                time.sleep(0.02)

    def _end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGQUIT)
                self._process.wait(10)
        shutil.rmtree(self.home, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
