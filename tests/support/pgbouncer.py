"""A real PgBouncer in transaction mode in front of a test's server."""

import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from supervisor.db.pginstall import server_account
from tests.support.servers import PASSWORD, ROLE, Server, _as_user, _free_port
from tests.support.tools import missing
from tests.support.waiting import wait_until

_CONFIG: Final = """
[databases]
* = host=127.0.0.1 port={server_port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = plain
auth_file = {dir}/users.txt
pool_mode = transaction
default_pool_size = {pool}
max_client_conn = 500
ignore_startup_parameters = extra_float_digits
logfile = {dir}/pgbouncer.log
pidfile =
"""


class PgBouncer:
    """`with PgBouncer(server) as pooler: ... pooler.conninfo("db")`."""

    def __init__(self, server: Server, *, pool: int = 10) -> None:
        self._server = server
        self._pool = pool
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._dir = Path(tempfile.mkdtemp(prefix="pgb-", dir="/tmp"))

    def conninfo(self, dbname: str) -> str:
        return make_conninfo(host="127.0.0.1", port=self.port, dbname=dbname, user=ROLE, password=PASSWORD)

    def __enter__(self) -> Self:
        program = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
        if program is None:
            missing("pgbouncer is missing: apt install pgbouncer")
        account = server_account()
        users = '"{}" "{}"\n'.format(ROLE, PASSWORD.replace('"', '""'))
        (self._dir / "users.txt").write_text(users)
        (self._dir / "pgbouncer.ini").write_text(
            _CONFIG.format(server_port=self._server.port, port=self.port, dir=self._dir, pool=self._pool)
        )
        if account:
            shutil.chown(self._dir, account.uid, account.gid)
        self._process = subprocess.Popen(
            [program, "-q", str(self._dir / "pgbouncer.ini")],
            cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            **_as_user(account),
        )  # fmt: skip
        wait_until(lambda: self._process.poll() is not None or self._answers(), 10, "pgbouncer answers")  # type: ignore[union-attr]
        if self._process.poll() is not None:
            pytest.fail(f"pgbouncer did not start: {self.log()}")
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)
        shutil.rmtree(self._dir, ignore_errors=True)

    def log(self) -> str:
        path = self._dir / "pgbouncer.log"
        return path.read_text(errors="replace")[-3000:] if path.exists() else "no log"

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.conninfo("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True
