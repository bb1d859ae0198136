"""A process beside the workers (the dashboard, a relay, a consumer): started, started again, stopped.

    start --> works  --> exits --restart(code), as for a worker--> start again, within the budget or later
                           '-- it cannot start as it is set (78) --> said once, and left

It is a program of its own (`python -m supervisor.dashboard`, `python -m supervisor.outbox relay`), not a fork: nothing
of it is loaded here, nor anything of the handlers there. It is handed its settings on its standard input, whose end
tells it that this parent is gone (wire/handed.py).

Always true: whatever becomes of it, the workers go on; it holds no lease and no job.

Elsewhere: what it does (dashboard/serve.py, outbox/role.py); the table of restarts (states.py).
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from typing import Final

from supervisor.grace import GOODBYE_S
from supervisor.log import get_logger
from supervisor.metrics import clear_gauges
from supervisor.parent.budget import RestartBudget
from supervisor.parent.states import Restart, restart
from supervisor.settings import Settings
from supervisor.wire.handed import Handed

_STOP_S: Final = GOODBYE_S
_SPAWN_RETRY_S: Final = 1.0

log = get_logger("parent")


class Helper:
    """One such child.

    Args:
        what: its name in the log.
        program: the module that is run, and its arguments.
        stop_s: how long it may take to stop when it is asked to.
        metrics_dir: where it is to count, where it does.
    """

    def __init__(
        self,
        settings: Settings,
        database_url: str,
        *,
        what: str = "dashboard",
        program: tuple[str, ...] = ("supervisor.dashboard",),
        stop_s: float = _STOP_S,
        metrics_dir: str | None = None,
    ) -> None:
        self._what = what
        self._program = program
        self._stop_s = stop_s
        self._metrics_dir = metrics_dir
        self._handed = Handed(settings, database_url, metrics_dir).packed()
        self._budget = RestartBudget(settings)
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Its process, while there is one; its exit code is ours to collect."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start it, and see to it until `stop`."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Ask it to stop; end it if it has not within seconds."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._stop_s):
                await process.wait()
        except TimeoutError:
            reason = f"still there {self._stop_s:g} s after SIGTERM"
            log.warning(f"{self._what}.killed", pid=process.pid, reason=reason)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _run(self) -> None:
        while True:
            try:
                self._process = await self._spawn()
            except OSError as error:
                log.error(f"{self._what}.spawn_failed", reason=str(error))
                await asyncio.sleep(_SPAWN_RETRY_S)
                continue
            born = time.monotonic()
            code = await self._process.wait()
            self._process = None
            if self._metrics_dir is not None:
                clear_gauges(self._metrics_dir, self._what)
            what = restart(code, None)
            if what is Restart.STOP_SERVICE:
                log.error(
                    f"{self._what}.given_up",
                    code=code,
                    reason="it cannot start as it is set; its own line above says why",
                    did="left it; the workers go on",
                )
                return
            delay = self._budget.delay() if what is Restart.WITHIN_BUDGET else _SPAWN_RETRY_S
            log.warning(
                f"{self._what}.exited",
                code=code,
                lived_s=round(time.monotonic() - born, 1),
                restart_in_s=round(delay, 2),
            )
            await asyncio.sleep(delay)

    async def _spawn(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *self._program,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            # It is to find what this interpreter finds.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)},
        )
        assert process.stdin is not None
        # Kept open: its end is how the child learns that this process is gone.
        process.stdin.write(self._handed)
        with contextlib.suppress(ConnectionError):
            await process.stdin.drain()
        log.info(f"{self._what}.started", pid=process.pid)
        return process
