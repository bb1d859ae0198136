"""A primary and a synchronous standby, for failovers: PostgreSQL 15 from the system, which brings pg_basebackup.

    start --> primary serves, standby follows --kill_primary--> --promote--> the standby serves
                                              --rejoin--> the old primary is back at its address, as a standby

Always true: a commit that the primary acknowledged is on the standby too (synchronous replication).
"""

import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psycopg

from tests.support.servers import _as_user, _clean_env, _free_port, _programs, place
from tests.support.waiting import wait_until

_CONFIG: Final = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 100
wal_level = replica
wal_log_hints = on
full_page_writes = off
synchronous_standby_names = 'ANY 1 (standby)'
"""
DBNAME: Final = "app"


class Replicas:
    """Two servers; `conninfo` names both and asks for the one that takes writes."""

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="pgha-", dir=place()))
        self.base.chmod(0o711)
        self._programs, self._account = _programs("15")
        self.ports = [_free_port(), _free_port()]
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        """Both servers, and no word of what is asked of them: a service adds by itself that it needs to write."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return f"postgresql://postgres@{hosts}/{DBNAME}?connect_timeout=2"

    @property
    def conninfo(self) -> str:
        """The same for any client: the one of the two that takes writes."""
        return f"{self.address}&target_session_attrs=read-write"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _run(self, program: str, *words: str) -> None:
        subprocess.run(
            [str(self._programs / program), *words],
            check=True, capture_output=True, cwd="/", env=_clean_env(), **_as_user(self._account),
        )  # fmt: skip

    def _serve(self, number: int) -> None:
        with (self.base / f"log{number}").open("ab") as out:
            self._running[number] = subprocess.Popen(
                [str(self._programs / "postgres"), "-D", str(self.base / f"data{number}")],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", env=_clean_env(),
                start_new_session=True, **_as_user(self._account),
            )  # fmt: skip
        wait_until(lambda: self._answers(number), 30, f"server {number} answers")

    def sessions(self, number: int, application_name: str) -> list[int]:
        """The server processes of the sessions on one of the two whose name is like *application_name*."""
        with self.connect(number, "postgres") as conn:
            like = "select pid from pg_stat_activity where application_name like %s"
            return [int(row[0]) for row in conn.execute(like, [application_name]).fetchall()]

    def _answers(self, number: int) -> bool:
        try:
            self.connect(number, "postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def connect(self, number: int, dbname: str = DBNAME) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection to one of the two, whatever its role."""
        return psycopg.connect(
            f"host=127.0.0.1 port={self.ports[number]} user=postgres dbname={dbname} connect_timeout=2",
            autocommit=True,
        )

    def _start(self) -> None:
        if self._account:
            shutil.chown(self.base, self._account.uid, self._account.gid)
        data = self.base / "data0"
        self._run("initdb", "-D", str(data), "-U", "postgres", "--auth=trust", "--no-sync", "--locale=C")
        with (data / "postgresql.conf").open("a") as file:
            file.write(f"{_CONFIG}port = {self.ports[0]}\n")
        self._serve(0)
        self._follow(1, leader=0, name="standby")
        with self.connect(0, "postgres") as conn:
            wait_until(
                lambda: (
                    conn.execute("select count(*) from pg_stat_replication where sync_state = 'quorum'").fetchone()
                    == (1,)
                ),
                30,
                "the standby follows",
            )
            conn.execute(f"create database {DBNAME}")

    def _follow(self, number: int, *, leader: int, name: str) -> None:
        """Make server *number* anew, as a standby of the other."""
        with self.connect(leader, "postgres") as conn:
            conn.execute("set synchronous_commit = local")
            conn.execute("select pg_create_physical_replication_slot(%s)", [name])
        data = self.base / f"data{number}"
        self._run(
            "pg_basebackup", "-D", str(data), "-R", "-X", "stream", "-S", name, "-c", "fast",
            "-d", f"host=127.0.0.1 port={self.ports[leader]} user=postgres application_name={name}",
        )  # fmt: skip
        with (data / "postgresql.conf").open("a") as file:
            file.write(f"port = {self.ports[number]}\n")
        self._serve(number)

    def kill_primary(self) -> None:
        """The primary's machine is lost."""
        self._running[0].send_signal(signal.SIGKILL)
        self._running[0].wait(10)

    def promote(self) -> float:
        """The standby takes over, as an operator or a cluster manager does it; the seconds it took."""
        began = time.monotonic()
        with self.connect(1, "postgres") as conn:
            conn.execute("select pg_promote(true, 30)")
            conn.execute("alter system set synchronous_standby_names = ''")
            conn.execute("select pg_reload_conf()")
        return time.monotonic() - began

    def rejoin(self) -> None:
        """The lost machine comes back at its old address and follows the new primary, as cluster managers do it."""
        shutil.rmtree(self.base / "data0")
        self._follow(0, leader=1, name="returned")

    def close(self) -> None:
        for process in self._running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGQUIT)
                process.wait(30)
        shutil.rmtree(self.base, ignore_errors=True)
