"""How a process died, in words."""

import signal

from supervisor import exits
from supervisor.parent.cgroup import directories

_CODES = {
    exits.OK: "it exited with code 0: something in it called os._exit(0)",
    exits.SOFTWARE: f"it failed by itself (exit code {exits.SOFTWARE})",
    exits.CUT: f"it left with jobs still running (exit code {exits.CUT})",
    exits.CONFIG: f"it could not start (exit code {exits.CONFIG})",
    None: "its exit code is unknown: the fork server was gone",
}


def death_word(code: int | None) -> str:
    """The signal's name, or "exit" with one of our own exit codes, or just "exit": a label with few values."""
    if code is None:
        return "unknown"
    if code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return "signal"
    return f"exit {code}" if code in _CODES else "exit"


def say_death(slot: int, pid: int, code: int | None, *, oom: bool) -> str:
    """One line: which worker, by which signal or exit code, and whether memory was the reason."""
    if code is not None and code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        how = f"killed by {name} ({-code})"
        if code == -signal.SIGKILL and oom:
            how += "; the kernel reports an out-of-memory kill in this control group"
    else:
        how = _CODES.get(code, f"exited with code {code}")
    return f"worker {slot} (pid {pid}): {how}"


def oom_kills() -> int:
    """Out-of-memory kills in this process's control group so far; 0 where that cannot be read."""
    for place in directories():
        try:
            lines = (place / "memory.events").read_text().splitlines()
            return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
        except (OSError, ValueError):  # no such file: the root's may be there
            continue
    return 0
