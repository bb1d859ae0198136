"""How a process died, in words."""

import signal
from pathlib import Path

from supervisor import exits

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
    try:
        group = next(
            line.partition("::")[2].strip()
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if "::" in line
        )
        for place in (Path("/sys/fs/cgroup") / group.lstrip("/"), Path("/sys/fs/cgroup")):
            events = place / "memory.events"
            if events.exists():
                for line in events.read_text().splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
    except (OSError, StopIteration, ValueError):
        pass
    return 0
