"""`supervisor drain`: let the service on this machine finish what it runs and take nothing more.

    read the run file --SIGUSR1--> parent drains and stays --> its run file says "drained"

For a preStop hook: `supervisor drain --wait`, then SIGTERM ends it at once.

Always true: the signal goes to the process that wrote the run file, never to a stranger that got its pid
later.
"""

import os
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from supervisor.cli.options import Json, RunDir

_LOOK_EVERY_S = 0.05
_MARGIN_S = 10.0


def drain(
    wait: Annotated[bool, typer.Option("--wait", help="Return when it has drained.")] = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Wait no longer.  [default: the drain timeout + 10]")
    ] = None,
    run_dir: RunDir = None,
    as_json: Json = False,
) -> None:
    """Let the service on this machine finish what it runs and claim nothing more; SIGTERM then ends it."""
    import signal

    from supervisor.cli import output
    from supervisor.cli.failures import CommandFailed
    from supervisor.cli.service import load
    from supervisor.parent.runfile import RunFile

    settings = load(run_dir=run_dir)
    file = RunFile(settings.run_dir)
    found = file.read()
    if found is None or not wrote(file.path, int(found["pid"])):
        raise CommandFailed(
            f"no supervisor runs here: {file.path} is missing, or what wrote it has gone. "
            "Use the user and the SUPERVISOR_RUN_DIR of the service"
        )
    pid, began = int(found["pid"]), time.monotonic()
    if found.get("state") != "drained":
        try:
            os.kill(pid, signal.SIGUSR1)
        except ProcessLookupError:
            raise CommandFailed(f"the supervisor (pid {pid}) has just gone: there is nothing to drain") from None
        except PermissionError:
            raise CommandFailed(f"the supervisor (pid {pid}) belongs to another user: drain it as that user") from None
    state = "drained" if found.get("state") == "drained" else "draining"
    if wait:
        patience = settings.drain_timeout_s + _MARGIN_S if timeout is None else timeout
        screen = output.console(stderr=True)
        waiting = screen.status(f"waiting for pid {pid} to drain") if screen.is_terminal else nullcontext()
        with waiting:
            state = _until_drained(file, pid, began + patience)
        if state == "draining":
            raise CommandFailed(
                f"the supervisor (pid {pid}) has not drained within {patience:g} s and goes on draining: "
                "give --timeout more than SUPERVISOR_DRAIN_TIMEOUT_S"
            )
    took = time.monotonic() - began
    if as_json:
        output.print_json({"pid": pid, "state": state, "waited_s": round(took, 3)})
    elif state == "draining":
        output.console().print(f"the supervisor (pid {pid}) drains; --wait waits for it", style="yellow")
    else:
        how = "has drained" if state == "drained" else "has drained and gone"
        output.console().print(f"the supervisor (pid {pid}) {how}, after {took:.1f} s", style="green")


def _until_drained(file: Any, pid: int, deadline: float) -> str:
    while True:
        found: Mapping[str, Any] | None = file.read()
        if found is None or found.get("pid") != pid:
            return "gone"
        if found.get("state") == "drained":
            return "drained"
        if time.monotonic() >= deadline:
            return "draining"
        time.sleep(_LOOK_EVERY_S)


def wrote(path: Path, pid: int) -> bool:
    """Whether process *pid* may have written *path*: it had started by then. True where that cannot be told."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        booted = next(
            int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime ")
        )
        started = booted + ticks / os.sysconf("SC_CLK_TCK")
        return started <= path.stat().st_mtime + 2.0  # btime is whole seconds
    except FileNotFoundError:
        return not Path("/proc/self/stat").exists()
    except (OSError, ValueError, IndexError, StopIteration):
        return True
