"""Real PostgreSQL servers, started by the tests themselves: 15 from Debian, 16 and 18 from the extra `embedded`.

    Servers (one per test session) --get("18")--> Server: initdb, start; used by many tests

Each server is a direct child, listens on a private Unix socket and on 127.0.0.1, and knows two
roles: `postgres` (superuser, socket only) and `supervisor_test`, an ordinary role that may
create databases, whose password has every character that breaks hand-made addresses.
Durability is off for speed: a killed server keeps its data, a machine that loses power does not. For the same reason
the files are in memory (/dev/shm) where there is room: each test has a database of some 300 files, and ext4 takes
a third of a second to make them where as many were deleted within the last minutes. TEST_FULL=1, whose figures are
those of commits on disk, leaves them there.

Always true: a missing tool fails the test in CI (tools.py); when the test run ends, in whatever
way, a watchdog ends the servers and removes their files.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import ClassVar, Final, Literal
from urllib.parse import quote, urlencode

import psycopg
import pytest
from psycopg import sql

from supervisor.db.pginstall import Account, AsUser, closed_to, find_programs, server_account
from tests.support import proc
from tests.support.sizes import FULL
from tests.support.tools import missing
from tests.support.waiting import wait_until

VERSIONS: Final = ("15", "16", "18")
ROLE: Final = "supervisor_test"
PASSWORD: Final = "p@ss:/?#[]%20 '\"\\ü&=+"
START_DEADLINE_S: Final = 30.0
MEMORY: Final = Path("/dev/shm")
MEMORY_NEEDED: Final = 4 * 2**30  # bytes: three servers in each of three processes, and what a big test writes

# Kills each postmaster and removes the files when its standard input ends, that is when the tests have ended.
_WATCHDOG: Final = """
cat > /dev/null
for file in "$0"/*/data/postmaster.pid; do
    [ -f "$file" ] || continue
    pid=$(head -n 1 "$file")
    kill -QUIT "$pid" 2> /dev/null
    tries=0
    while kill -0 "$pid" 2> /dev/null && [ "$tries" -lt 20 ]; do sleep 0.1; tries=$((tries + 1)); done
done
rm -rf "$0"
"""

_CONFIG: Final = """
listen_addresses = '127.0.0.1'
max_connections = 200
fsync = off
full_page_writes = off
shared_buffers = 256MB
max_wal_size = 512MB
max_prepared_transactions = 10
log_lock_waits = on
log_line_prefix = '%m [%p] %a %d: '
password_encryption = 'scram-sha-256'
"""

_HBA: Final = f"""
local all postgres trust
local all all scram-sha-256
host all {ROLE} 127.0.0.1/32 scram-sha-256
"""


class Server:
    """One PostgreSQL server. Made stopped; `start` makes its cluster the first time."""

    _postmasters: ClassVar[set[int]] = set()  # of all servers: their exit codes are for Popen to take

    def __init__(self, version: str, base: Path) -> None:
        self.version = version
        self.dir = base / version
        self.port = _free_port()
        self.log_path = self.dir / "postgres.log"
        self._account: Account | None
        self._programs, self._account = _programs(version)
        self._postmaster: subprocess.Popen[bytes] | None = None

    # -- addresses ----------------------------------------------------------------------

    def conninfo(self, dbname: str = "postgres", *, via: Literal["tcp", "socket"] = "tcp", **params: str) -> str:
        """Return the URI for the ordinary role; *params* become query parameters, e.g. sslmode="require"."""
        return self._uri(f"{ROLE}:{quote(PASSWORD, safe='')}", dbname, via, params)

    def superuser_conninfo(self, dbname: str = "postgres", **params: str) -> str:
        """Return the URI for the role `postgres`, over the socket."""
        return self._uri("postgres", dbname, "socket", params)

    def _uri(self, user: str, dbname: str, via: Literal["tcp", "socket"], params: dict[str, str]) -> str:
        host = "127.0.0.1" if via == "tcp" else str(self.dir)
        query = urlencode({"host": host, "port": str(self.port), **params})
        return f"postgresql://{user}@/{quote(dbname, safe='')}?{query}"

    # -- life ---------------------------------------------------------------------------

    def is_running(self) -> bool:
        return self._postmaster is not None and self._postmaster.poll() is None

    @property
    def pid(self) -> int:
        assert self._postmaster is not None, f"server {self.version} was never started"
        return self._postmaster.pid

    def start(self) -> None:
        """Start the server and return when it answers. Without effect if it runs."""
        if self.is_running():
            return
        fresh = not (self.dir / "data").exists()
        if fresh:
            self._make_cluster()
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            with self.log_path.open("ab") as out:
                before = out.tell()
                self._postmaster = subprocess.Popen(
                    [str(self._programs / "postgres"), "-D", str(self.dir / "data")],
                    stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", env=_clean_env(),
                    start_new_session=True, **_as_user(self._account),
                )  # fmt: skip
            self._postmasters.add(self._postmaster.pid)
            wait_until(
                lambda: not self.is_running() or self.answers(), START_DEADLINE_S, f"server {self.version} answers"
            )
            _reap_backends(self._postmasters)
            if self.is_running():
                break
            # After kill9 the backends hold the shared memory for a moment longer than their postmaster.
            said = self.log_path.read_bytes()[before:].decode(errors="replace")
            if time.monotonic() > deadline or "shared memory block" not in said:
                pytest.fail(f"PostgreSQL {self.version} did not start: {said[-4000:]}")
        if fresh:
            with psycopg.connect(self.superuser_conninfo(), autocommit=True) as conn:
                statement = sql.SQL("create role {} login createdb password {}")
                conn.execute(statement.format(sql.Identifier(ROLE), sql.Literal(PASSWORD)))

    def stop(self, mode: Literal["fast", "immediate", "smart"] = "fast", deadline_s: float = 30.0) -> None:
        """Stop it as pg_ctl would: fast disconnects everyone, immediate is a crash that PostgreSQL notices."""
        if not self.is_running():
            return
        assert self._postmaster is not None
        self._postmaster.send_signal(
            {"fast": signal.SIGINT, "immediate": signal.SIGQUIT, "smart": signal.SIGTERM}[mode]
        )
        self._postmaster.wait(deadline_s)

    def restart(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        self.stop(mode)
        self.start()

    def kill9(self) -> None:
        """SIGKILL the postmaster; its backends notice by themselves."""
        assert self._postmaster is not None
        self._postmaster.kill()
        self._postmaster.wait(10)

    def reload(self) -> None:
        self.execute("select pg_reload_conf()")

    def enable_tls(self) -> None:
        """Serve TLS with a certificate made for it; conninfo(sslmode="require") then uses it.

        Only Debian's 15 can: the servers of the extra `embedded` are built without TLS.
        """
        if (self.dir / "server.key").exists():
            return
        openssl = shutil.which("openssl")
        if openssl is None:
            missing("openssl is missing: apt install openssl")
        key, certificate = self.dir / "server.key", self.dir / "server.crt"
        words = "req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
        subprocess.run(
            [openssl, *words.split(), "-keyout", str(key), "-out", str(certificate)],
            check=True, capture_output=True,
        )  # fmt: skip
        key.chmod(0o600)
        if self._account:
            os.chown(key, self._account.uid, self._account.gid)
            os.chown(certificate, self._account.uid, self._account.gid)
        self.execute(f"alter system set ssl_key_file = '{key}'")
        self.execute(f"alter system set ssl_cert_file = '{certificate}'")
        self.execute("alter system set ssl = on")
        self.reload()
        wait_until(
            lambda: self._opens(self.conninfo(sslmode="require", connect_timeout="2")), 10, "the server speaks TLS"
        )

    def program(self, name: str) -> Path:
        """One of the server's own programs, such as pgbench."""
        return self._programs / name

    # -- facts --------------------------------------------------------------------------

    def answers(self) -> bool:
        return self._opens(self.superuser_conninfo(connect_timeout="2"))

    def execute(self, statement: str, dbname: str = "postgres") -> list[tuple[object, ...]]:
        """Run one statement as superuser, outside a transaction."""
        with psycopg.connect(self.superuser_conninfo(dbname), autocommit=True) as conn:
            done = conn.execute(statement.encode())
            return done.fetchall() if done.description else []

    def log_tail(self, lines: int = 50) -> str:
        with contextlib.suppress(FileNotFoundError):
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
        return ""

    @staticmethod
    def _opens(conninfo: str) -> bool:
        try:
            psycopg.connect(conninfo).close()
        except psycopg.OperationalError:
            return False
        return True

    def _make_cluster(self) -> None:
        self.dir.mkdir(mode=0o700)
        if self._account:
            os.chown(self.dir, self._account.uid, self._account.gid)
        data = self.dir / "data"
        made = subprocess.run(
            [
                str(self._programs / "initdb"), "-D", str(data), "-U", "postgres", "--encoding=UTF8", "--locale=C",
                "--auth=trust", "--no-sync", "--no-instructions",
            ],
            cwd="/", env=_clean_env(), capture_output=True, text=True, check=False, **_as_user(self._account),
        )  # fmt: skip
        if made.returncode != 0:
            pytest.fail(f"initdb of PostgreSQL {self.version} failed: {made.stderr[-2000:]}")
        with (data / "postgresql.conf").open("a") as file:
            file.write(f"{_CONFIG}port = {self.port}\nunix_socket_directories = '{self.dir}'\n")
        (data / "pg_hba.conf").write_text(_HBA)


class Servers:
    """The servers of one test session, each started when first asked for."""

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="pgsv-", dir=place()))
        self.base.chmod(0o711)
        self._servers: dict[str, Server] = {}
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, str(self.base)], stdin=subprocess.PIPE, start_new_session=True
        )

    def get(self, version: str) -> Server:
        """Return the server of *version*, running: a test that stopped it need not start it again."""
        if version not in VERSIONS:
            pytest.fail(f"no PostgreSQL {version} for tests: there are {', '.join(VERSIONS)}")
        if version not in self._servers:
            self._servers[version] = Server(version, self.base)
        self._servers[version].start()
        return self._servers[version]

    def close(self) -> None:
        for server in self._servers.values():
            server.stop("immediate")
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()
        self._watchdog.wait(15)


def place() -> Path:
    """The directory for the files of servers, in memory if there is room. Its name is short: it holds sockets."""
    if not FULL and MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
        if min(shutil.disk_usage(MEMORY).free, available) > MEMORY_NEEDED:
            return MEMORY
    return Path("/tmp")


def _programs(version: str) -> tuple[Path, Account | None]:
    """Return the directory of the programs, and the user who runs them if we are root."""
    account = server_account()
    if version != "15":
        return find_programs(int(version), account), account
    places = [os.environ.get("TEST_PG15_BIN", ""), "/usr/lib/postgresql/15/bin", "/usr/pgsql-15/bin"]
    for place in map(Path, filter(None, places)):
        if (place / "initdb").exists():
            if account and (closed := closed_to(account, place / "initdb")):
                pytest.fail(f"{place} cannot be used as root: {closed} is closed to system user {account.name}")
            return place, account
    missing("PostgreSQL 15 is missing: apt install postgresql-15, or name its bin directory in TEST_PG15_BIN")


def _as_user(account: Account | None) -> AsUser:
    return account.as_user() if account else AsUser(user=None, group=None, extra_groups=None)


def _clean_env() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("PG", "LC_", "LANG"))}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _reap_backends(postmasters: set[int]) -> None:
    """Take away the backends of killed postmasters that were left to us as zombies."""
    for process in proc.everyone():
        ours = process.parent == os.getpid() and process.pid not in postmasters
        if ours and process.name == "postgres" and not process.alive:
            proc.reap(process.pid)
