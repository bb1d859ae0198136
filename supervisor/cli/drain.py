"""`supervisor drain`: let a service on this machine finish what it runs and take nothing more.

    read the run file --SIGUSR1--> parent drains and stays --> its run file says "drained"

For a preStop hook: `supervisor drain --wait`, then SIGTERM ends it at once.

Always true: the signal goes to a process that wrote a run file, never to a stranger that got its pid
later; with several services here, to none unless one is named.
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
    pid: Annotated[int | None, typer.Option(help="Which one, where several run.")] = None,
    run_dir: RunDir = None,
    as_json: Json = False,
) -> None:
    """Let the service on this machine finish what it runs and claim nothing more; SIGTERM then ends it."""
    import signal

    from supervisor.cli import output
    from supervisor.cli.failures import CommandFailed
    from supervisor.cli.service import load

    settings = load(run_dir=run_dir)
    found = _choose(settings.run_dir, pid)
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
            state = _until_drained(settings.run_dir, found, began + patience)
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


def _choose(run_dir: Path, pid: int | None) -> dict[str, Any]:
    from supervisor.cli.failures import CommandFailed
    from supervisor.parent.runfile import living

    found = living(run_dir)
    if pid is not None:
        found = [facts for facts in found if facts["pid"] == pid]
    if not found:
        which = f"with pid {pid} " if pid is not None else ""
        raise CommandFailed(
            f"no supervisor {which}runs here: {run_dir} has no run file of a living one. "
            "Use the user and the SUPERVISOR_RUN_DIR of the service"
        )
    if len(found) > 1:
        pids = ", ".join(f"{facts['pid']} ({facts.get('name', '?')})" for facts in found)
        raise CommandFailed(f"{len(found)} supervisors run here: name one with --pid: {pids}")
    return found[0]


def _until_drained(run_dir: Path, parent: Mapping[str, Any], deadline: float) -> str:
    from supervisor.parent.runfile import state_of

    while True:
        state = state_of(run_dir, parent)
        if state is None:
            return "gone"
        if state == "drained":
            return "drained"
        if time.monotonic() >= deadline:
            return "draining"
        time.sleep(_LOOK_EVERY_S)
