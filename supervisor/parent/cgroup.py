"""Where the kernel says what this service's control group may use, and what it has been denied.

Always true: what cannot be read is left out; whoever asks has an answer without it.

Elsewhere: what memory there is (limits.py); kills for want of it (deaths.py).
"""

from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def directories() -> tuple[Path, ...]:
    """The directory of this process's control group, then the one at the root: in a container they are often one.

    None without control groups of version 2.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ()
    group = next((line.partition("::")[2].strip() for line in lines if "::" in line), None)
    return () if group is None else (_ROOT / group.lstrip("/"), _ROOT)
