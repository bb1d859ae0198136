"""One PostgreSQL cluster on disk, made and run by the programs of the extra `embedded`.

    make (initdb, once) -> start (pg_ctl, or find it running) -> stop

On disk, in its home directory: `cluster/` with the data, `postgres.log`, and the socket, unless
the path is no good for one.

Always true: whoever makes, starts or stops it holds the lock of its home (embedded.py), so none
of these happen at the same time; what a killed postmaster left behind never keeps it down.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import psycopg

from supervisor.db.pginstall import Account, AsUser
from supervisor.errors import DatabaseUnavailable, SettingsInvalid

START_DEADLINE_S: Final = 60.0  # crash recovery included
STOP_DEADLINE_S: Final = 20
PORT: Final = 5432  # names the socket file only; no TCP port is opened
_NO_PID: Final = 2**22 + 1  # above the largest pid a Linux kernel gives


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where it is, and who runs it with which programs."""

    home: Path
    socket_dir: Path
    version: int
    programs: Path
    account: Account | None

    @property
    def conninfo(self) -> str:
        """The URI of the database `postgres` on the server's socket."""
        return f"postgresql://postgres@/postgres?host={quote(str(self.socket_dir), safe='')}&port={PORT}"

    @property
    def data(self) -> Path:
        return self.home / "cluster"

    @property
    def log_path(self) -> Path:
        return self.home / "postgres.log"

    def make(self) -> None:
        """Make the cluster if there is none. It gets its name when complete: a killed initdb leaves no half one."""
        if (made := self.data / "PG_VERSION").exists():
            if (found := made.read_text().strip()) != str(self.version):
                raise SettingsInvalid(
                    [f"{self.home} holds a cluster of PostgreSQL {found}, not {self.version}: name another directory"]
                )
            return
        fresh = self.home / "cluster.new"
        shutil.rmtree(fresh, ignore_errors=True)
        # Trust is safe here: the only way in is a socket in a directory of mode 0700.
        words = "-U postgres --auth=trust --encoding=UTF8 --locale=C --no-instructions"
        done = self._run("initdb", "-D", str(fresh), *words.split())
        if done.returncode != 0:
            raise DatabaseUnavailable(f"initdb failed for the embedded server: {_tail(done.stderr)}", 0.0)
        fresh.rename(self.data)

    def start(self) -> bool:
        """Return True if it ran already, False if this call started it."""
        began = time.monotonic()
        deadline = began + START_DEADLINE_S
        while True:
            # Asked first: a server whose pid cannot be seen from this container may well answer.
            if self.answers():
                return True
            owner = self.postmaster()
            if owner is None:
                before = self._log_size()
                started = self._pg_ctl(
                    "start", "-w", "-t", str(int(START_DEADLINE_S)), "-l", str(self.log_path),
                    "-o", f"-h '' -p {PORT} -k {shlex.quote(str(self.socket_dir))}",
                )  # fmt: skip
                if started.returncode == 0 and self.answers():
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

    def stop(self) -> None:
        """Disconnect everyone and shut down. It is no error if it does not run."""
        self._pg_ctl("stop", "-w", "-m", "fast", "-t", str(STOP_DEADLINE_S))
        if self.socket_dir != self.home:
            with contextlib.suppress(OSError):
                self.socket_dir.rmdir()

    def postmaster(self) -> int | None:
        """Give the pid of this cluster's living postmaster.

        A file left by a killed one may name a pid that another program has by now (common in
        containers, where pids are small), or a zombie: PostgreSQL would refuse to start. The pid
        is struck out, and the file kept: it names the shared memory by which the new postmaster
        sees backends of the old one that still write.
        """
        file = self.data / "postmaster.pid"
        try:
            pid = int(file.read_text().split("\n", 1)[0])
            os.kill(pid, 0)
        except (OSError, ValueError):
            return None  # no file, or a dead pid: PostgreSQL clears that away itself
        try:
            argv = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return None if Path("/proc/self").exists() else pid
        if os.fsencode(self.data) in argv:
            return pid
        for stale in (file, self.socket_dir / f".s.PGSQL.{PORT}.lock"):
            with contextlib.suppress(FileNotFoundError):
                stale.write_text("\n".join([str(_NO_PID), *stale.read_text().split("\n")[1:]]))
        return None

    def answers(self) -> bool:
        """Tell whether this very cluster takes connections."""
        try:
            with psycopg.connect(self.conninfo, connect_timeout=2, autocommit=True) as conn:
                row = conn.execute("show data_directory").fetchone()
        except psycopg.OperationalError:
            return False
        return row is not None and Path(row[0]) == self.data

    def _log_size(self) -> int:
        with contextlib.suppress(OSError):
            return self.log_path.stat().st_size
        return 0

    def _log_since(self, offset: int) -> str:
        """Give what the server said after the first *offset* bytes of its log; empty if it has none."""
        with contextlib.suppress(OSError), self.log_path.open("rb") as file:
            # A log that was kept for months is not read whole for its end.
            file.seek(max(offset, self._log_size() - 64_000))
            return file.read().decode(errors="replace")
        return ""

    def _pg_ctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._run("pg_ctl", words[0], "-D", str(self.data), *words[1:])

    def _run(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith(("PG", "LC_", "LANG"))}
        argv = [str(self.programs / program), *words]
        # Output goes to a file: a server that kept a pipe of ours open would make us wait for its end.
        with tempfile.TemporaryFile("w+", errors="replace") as said:
            as_user = self.account.as_user() if self.account else AsUser(user=None, group=None, extra_groups=None)
            code = subprocess.call(
                argv, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=said, stderr=said, **as_user
            )
            said.seek(0)
            return subprocess.CompletedProcess(argv, code, "", said.read())


def _tail(text: str, limit: int = 400) -> str:
    return " / ".join(text.strip().splitlines()[-4:])[-limit:] or "it said nothing"
