"""The dashboard's process, beside the workers: started, started again, stopped.

    start --> serves --> exits --restart(code), as for a worker--> start again, within the budget or later
                           '-- it cannot start as it is set (78) --> said once, and left

It is a program of its own (`python -m supervisor.dashboard`), not a fork: nothing of it is loaded here, nor anything
of the handlers there. It is handed its settings on its standard input, whose end tells it that this parent is gone.

Always true: whatever becomes of it, the workers go on; it holds no lease and no job.

Elsewhere: what it serves (dashboard/serve.py); the table of restarts (states.py).
"""

import asyncio
import contextlib
import os
import pickle
import signal
import sys
import time
from typing import Final

from supervisor.grace import GOODBYE_S
from supervisor.log import get_logger
from supervisor.parent.budget import RestartBudget
from supervisor.parent.states import Restart, restart
from supervisor.settings import Settings

_STOP_S: Final = GOODBYE_S
_SPAWN_RETRY_S: Final = 1.0
_LENGTH: Final = 8

log = get_logger("parent")


class Helper:
    """One child that serves the dashboard."""

    def __init__(self, settings: Settings, database_url: str) -> None:
        self._settings = settings
        handed = pickle.dumps((settings, database_url))
        self._handed = len(handed).to_bytes(_LENGTH, "big") + handed
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
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            log.warning("dashboard.killed", pid=process.pid, reason=f"still there {_STOP_S:g} s after SIGTERM")
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _run(self) -> None:
        while True:
            try:
                self._process = await self._spawn()
            except OSError as error:
                log.error("dashboard.spawn_failed", reason=str(error))
                await asyncio.sleep(_SPAWN_RETRY_S)
                continue
            born = time.monotonic()
            code = await self._process.wait()
            self._process = None
            what = restart(code, None)
            if what is Restart.STOP_SERVICE:
                log.error(
                    "dashboard.given_up",
                    code=code,
                    reason="it cannot start as it is set; its own line above says why",
                    did="left it; the workers go on",
                )
                return
            delay = self._budget.delay() if what is Restart.WITHIN_BUDGET else _SPAWN_RETRY_S
            log.warning(
                "dashboard.exited",
                code=code,
                lived_s=round(time.monotonic() - born, 1),
                restart_in_s=round(delay, 2),
            )
            await asyncio.sleep(delay)

    async def _spawn(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "supervisor.dashboard",
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
        log.info("dashboard.started", pid=process.pid)
        return process
