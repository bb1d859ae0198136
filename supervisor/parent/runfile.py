"""A small file that says which process is the parent here and what it does: for `supervisor drain`."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any


class RunFile:
    """run_dir/parent.json, replaced as a whole at each change."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / "parent.json"

    def write(self, **facts: Any) -> None:
        """Say what is; a directory that cannot be written costs only `supervisor drain`."""
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.path.with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps({"pid": os.getpid(), **facts}))
            fresh.replace(self.path)

    def read(self) -> dict[str, Any] | None:
        """What the file says; None when there is no living parent behind it."""
        try:
            facts: dict[str, Any] = json.loads(self.path.read_text())
            os.kill(int(facts["pid"]), 0)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return facts

    def remove(self) -> None:
        """Take it away, if it is this process's."""
        found = self.read()
        if found is not None and found.get("pid") == os.getpid():
            with contextlib.suppress(OSError):
                self.path.unlink()
