"""The kinds that the handlers of these settings know, asked of a process of its own.

Handlers are the user's code: importing them may take long, print, start threads or end the process.

    kinds(modules) --python -m supervisor.cli.kinds--> import, print the kinds as one JSON line
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

PATIENCE_S = 30.0
_MARK = "kinds-known-here "


def kinds(modules: Sequence[str], *, patience_s: float = PATIENCE_S) -> tuple[frozenset[str] | None, str]:
    """The kinds and aliases that *modules* declare, and why they are not known (None) if they do not import."""
    path = os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    try:
        done = subprocess.run(
            [sys.executable, "-m", "supervisor.cli.kinds", *modules],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"importing them took longer than {patience_s:g} s"
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(_MARK):
            document = json.loads(line.removeprefix(_MARK))
            return (frozenset(document["kinds"]), "") if "kinds" in document else (None, str(document["reason"]))
    return None, f"the process that imported them ended with code {done.returncode}"


def _answer(modules: Sequence[str]) -> None:
    from supervisor.errors import HandlersFailed
    from supervisor.handler import registry
    from supervisor.worker.registry import import_handlers

    try:
        import_handlers(modules)
        document: dict[str, object] = {"kinds": sorted(registry())}
    except HandlersFailed as error:
        document = {"reason": str(error)}
    sys.stdout.write(f"\n{_MARK}{json.dumps(document)}\n")
    sys.stdout.flush()
    os._exit(0)  # whatever they have started


if __name__ == "__main__":
    _answer(sys.argv[1:])
