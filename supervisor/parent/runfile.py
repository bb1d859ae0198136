"""A small file per parent that says which process it is and what it does: for `supervisor drain`.

    run_dir/parent-<pid>.json     replaced as a whole at each change, gone with the parent

Always true: a file counts only while the process that wrote it lives. A stranger that got the pid later
is told apart by the time it started, so nobody signals it.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def started(pid: int) -> str | None:
    """When *pid* started, in the kernel's clock ticks since boot; None if it is gone, "" where that cannot be told."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self/stat").exists() else ""
    except (OSError, IndexError):
        return ""


class RunFile:
    """This parent's file."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / f"parent-{os.getpid()}.json"

    def write(self, **facts: Any) -> None:
        """Say what is; a directory that cannot be written costs only `supervisor drain`."""
        whole = {"pid": os.getpid(), "started": started(os.getpid()), **facts}
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.path.with_suffix(".new")
            fresh.write_text(json.dumps(whole))
            fresh.replace(self.path)

    def remove(self) -> None:
        """Take it away."""
        with contextlib.suppress(OSError):
            self.path.unlink()


def living(run_dir: Path) -> list[dict[str, Any]]:
    """What the files of living parents say; files of dead ones are swept away."""
    found = []
    for path in sorted(run_dir.glob("parent-*.json")):
        try:
            facts: dict[str, Any] = json.loads(path.read_text())
            pid, since = int(facts["pid"]), facts.get("started")
        except (OSError, ValueError, KeyError, TypeError):
            continue
        now = started(pid)
        if now is None or (now and since and now != since):
            with contextlib.suppress(OSError):
                path.unlink()
            continue
        found.append(facts)
    return found


def state_of(run_dir: Path, parent: Mapping[str, Any]) -> str | None:
    """What *parent*, one of `living`, does now; None when it is gone."""
    for facts in living(run_dir):
        if facts["pid"] == parent["pid"] and facts.get("started") == parent.get("started"):
            return str(facts.get("state"))
    return None
