"""Running jobs that an operator has cancelled: their workers are told; by force, they are ended.

    notification ----------------.
    LISTEN is active again,      +--> tell the worker --by force: its handler still runs at kill_at--> kill the worker
    or polling: ask the database '

Always true: before a worker is killed its board says for which job, so that this one ends cancelled and what runs
beside it goes back uncharged. A job that has ended meanwhile, or whose handler has, costs no worker.

Elsewhere: the order itself (functions/080_operate.sql); stopping a handler (worker/run.py); the recovery (recover.py).
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from supervisor.db import tend
from supervisor.db.links import Caller
from supervisor.log import get_logger
from supervisor.parent.child import Child
from supervisor.parent.guard import Guard, wait_at_most
from supervisor.parent.states import State
from supervisor.settings import Settings
from supervisor.wire.board import Entry, Phase
from supervisor.wire.messages import CancelJob

_LOOK_EVERY_S: Final = 0.1
_MOST: Final = 1000

log = get_logger("parent")


class Cancels:
    """The cancelled runs of this parent's workers.

    Args:
        workers: those whose processes exist.
        listening: whether notifications arrive; `look_now` is called when that changes.
    """

    def __init__(
        self,
        link: Caller,
        settings: Settings,
        *,
        guard: Guard,
        workers: Callable[[], Iterable[Child]],
        listening: Callable[[], bool],
    ) -> None:
        self._link = link
        self._settings = settings
        self._guard = guard
        self._workers = workers
        self._listening = listening
        self._doomed: dict[tuple[int, int], tuple[Child, float]] = {}  # run -> its worker, when that is killed
        self._some = asyncio.Event()
        self._ask = asyncio.Event()

    def heard(self, job_id: int, session: int, token: int, kill_s: float | None = None) -> None:
        """A notification: this run was cancelled; its worker is killed in *kill_s* seconds, None: never."""
        for child in self._workers():
            if session in child.sessions():
                self._tell(child, job_id, token, kill_s)

    def look_now(self) -> None:
        """Notifications may have been missed until now, or may be from now on."""
        self._ask.set()

    async def run(self) -> None:
        """Kill in time, until cancelled."""
        while True:
            await self._some.wait()
            self._some.clear()
            while self._doomed:
                for (job_id, token), (child, at) in list(self._doomed.items()):
                    if time.monotonic() >= at:
                        self._kill(child, job_id, token)
                await asyncio.sleep(_LOOK_EVERY_S)

    async def look(self) -> None:
        """Ask for what was missed: after each reconnect, and while no notifications arrive, until cancelled."""
        while True:
            if self._listening():
                await self._ask.wait()
            else:
                await wait_at_most(self._ask, self._settings.poll_without_listen_s)
            self._ask.clear()
            await self._guard.run(self._look, "cancels")

    async def _look(self) -> None:
        runs = {
            (entry.job_id, entry.token): child
            for child in self._workers()
            for entry in child.snapshot().entries
            if entry.phase in (Phase.CLAIMED, Phase.STARTED) and not entry.torn
        }
        asked = list(runs)
        for start in range(0, len(asked), _MOST):
            part = asked[start : start + _MOST]
            found = await self._link.call(
                lambda conn, part=part: tend.cancels_of(conn, self._settings.schema_, part)  # type: ignore[misc]
            )
            for job_id, token, kill_s in found:
                self._tell(runs[job_id, token], job_id, token, kill_s)

    def _tell(self, child: Child, job_id: int, token: int, kill_s: float | None) -> None:
        child.tell(CancelJob(job_id, token))
        if kill_s is not None:
            at = time.monotonic() + max(0.0, kill_s)
            known = self._doomed.get((job_id, token))
            self._doomed[job_id, token] = (child, at if known is None else min(at, known[1]))
            self._some.set()

    def _kill(self, child: Child, job_id: int, token: int) -> None:
        entry = _held(child, job_id, token)
        if entry is None or child.state is State.KILLED:
            del self._doomed[job_id, token]
            return
        if entry.phase is not Phase.STARTED:
            return  # it is being handed back
        del self._doomed[job_id, token]
        child.board.mark_killed(entry.index, cancelled=True)
        log.warning(
            "job.killed",
            job_id=job_id,
            kind=entry.kind,
            slot=child.slot,
            pid=child.pid,
            ran_s=round(time.monotonic() - entry.started_ns / 1e9, 1),
            reason="it was cancelled by force and had not stopped in time",
            did="killed its worker; the job is cancelled, what ran beside it goes back uncharged",
        )
        child.kill("cancel")


def _held(child: Child, job_id: int, token: int) -> Entry | None:
    """Its entry on the worker's board, while its handler has not returned."""
    for entry in child.snapshot().entries:
        if (entry.job_id, entry.token) == (job_id, token):
            return None if entry.phase is Phase.RETURNED and not entry.torn else entry
    return None
