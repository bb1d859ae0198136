"""Facts about processes, read from /proc.

A pid alone proves nothing (it is reused), so processes of a service are known by their
session: the service is started as a session leader, and what it forks stays in it.
"""

import contextlib
import ctypes
import os
import signal
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc/<pid>/stat."""

    pid: int
    name: str
    state: str  # R, S, D, T (stopped), Z (zombie) ...
    parent: int
    session: int
    cpu_s: float
    threads: int
    rss_bytes: int

    @property
    def alive(self) -> bool:
        return self.state not in "ZX"


def look(pid: int) -> Process | None:
    """Return what /proc says of *pid*; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]
    words = text[text.rindex(")") + 2 :].split()
    return Process(
        pid=pid,
        name=name,
        state=words[0],
        parent=int(words[1]),
        session=int(words[3]),
        cpu_s=(int(words[11]) + int(words[12])) / _TICKS_PER_S,
        threads=int(words[17]),
        rss_bytes=int(words[21]) * _PAGE_BYTES,
    )


def everyone() -> list[Process]:
    """Return every process there is, by pid."""
    pids = sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [found for pid in pids if (found := look(pid))]


def in_session(session: int) -> list[Process]:
    """Return the living processes of a session, and take away the zombies of it that are ours."""
    found = [process for process in everyone() if process.session == session]
    for process in found:
        if not process.alive and process.parent == os.getpid() and process.pid != session:
            reap(process.pid)
    return [process for process in found if process.alive]


def children(pid: int) -> list[Process]:
    """Return the living children of *pid*."""
    return [process for process in everyone() if process.parent == pid and process.alive]


def command_line(pid: int) -> str:
    """Return the words *pid* was started with; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def starved_s(pid: int) -> float:
    """Seconds since its birth in which the main thread of *pid* was ready to run and the machine ran others."""
    return int(Path(f"/proc/{pid}/schedstat").read_bytes().split()[1]) / 1e9


def descriptors(pid: int) -> dict[int, str]:
    """Return the open descriptors of *pid* and what each one is, e.g. `socket:[4711]`."""
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed while we looked
            found[int(entry.name)] = str(entry.readlink())
    return found


def reap(pid: int) -> int | None:
    """Take the exit code of a child that has ended (-9 if SIGKILL ended it); None if it has not, or is not ours."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if ended else None


def kill(pid: int, sig: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal; it is no error if the process is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sig)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent dies, so that none is lost from sight."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
