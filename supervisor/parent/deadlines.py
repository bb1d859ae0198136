"""Watches what workers do: kills one whose job ignores its deadline, names handlers that block a loop
or keep every slot.

`timeout` tells a handler to stop; `kill_after` later its process is killed, whatever C code it sits in.
The board is marked first, so that the recovery charges that job and nobody else.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from supervisor.clock import to_ns
from supervisor.log import get_logger
from supervisor.metrics import metrics
from supervisor.parent.child import Child
from supervisor.parent.states import State
from supervisor.wire.board import Phase

LOOK_EVERY_S: Final = 0.1
_REST_S: Final = 0.25  # while no worker holds a job
BLOCKED_AFTER_S: Final = 1.5
STARVED_AFTER_S: Final = 5.0

log = get_logger("deadlines")


class Deadlines:
    """The watch over running jobs. *workers*: those whose processes exist; *slots*: of each."""

    def __init__(self, workers: Callable[[], Iterable[Child]], slots: int) -> None:
        self._workers = workers
        self._slots = slots

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            some = False
            for child in list(self._workers()):
                held = child.board.held()
                some = some or bool(held)
                self._overdue(child, held)
                self._blocked(child)
                self._starved(child, held)
            await asyncio.sleep(LOOK_EVERY_S if some else _REST_S)

    def _overdue(self, child: Child, held: Sequence[int]) -> None:
        overdue = child.board.overdue(to_ns(time.monotonic()), held)
        if not overdue or child.state is State.KILLED:
            return
        for entry in overdue:
            child.board.mark_killed(entry.index)
            log.error(
                "job.killed",
                job_id=entry.job_id,
                kind=entry.kind,
                slot=child.slot,
                pid=child.pid,
                ran_s=round(time.monotonic() - entry.started_ns / 1e9, 1),
                reason="it ran on after its timeout and kill_after",
                did="killed its worker; the job is charged a failed attempt, its neighbours nothing",
            )
        child.kill("deadline")

    def _blocked(self, child: Child) -> None:
        header = child.board.read_header()
        if not header.tick_ns:
            return
        stale = time.monotonic() - header.tick_ns / 1e9
        if stale < BLOCKED_AFTER_S:
            if child.blocked_since is not None:
                log.info("worker.unblocked", slot=child.slot, after_s=round(time.monotonic() - child.blocked_since, 1))
                child.blocked_since = None
            return
        if child.blocked_since is None:
            child.blocked_since = time.monotonic() - stale
            running = [entry for entry in child.snapshot().entries if entry.phase is Phase.STARTED]
            metrics().errors.labels("loop_blocked").inc()
            log.warning(
                "worker.blocked",
                slot=child.slot,
                pid=child.pid,
                for_s=round(stale, 1),
                kinds=sorted({entry.kind for entry in running}),
                job_ids=[entry.job_id for entry in running][:20],
                reason="its event loop does not turn: a handler computes without awaiting, or the process is stopped",
                remedy="make the handler a plain def, which runs in a thread, or await in between",
            )

    def _starved(self, child: Child, held: Sequence[int]) -> None:
        """No slot has come free for long, and jobs were seen to wait since the last one was filled."""
        claimed, started, newest = child.board.crowd(held)
        now = to_ns(time.monotonic())
        if child.starved_ns and (started < self._slots or newest != child.starved_ns):
            log.info("worker.fed", slot=child.slot, after_s=round((now - child.starved_ns) / 1e9, 1))
            child.starved_ns = 0
        if started < self._slots:
            return
        if claimed:
            child.waited_ns = now
        if child.starved_ns or child.waited_ns < newest or now - newest < STARVED_AFTER_S * 1e9:
            return
        child.starved_ns = newest
        running = [entry for entry in child.snapshot().entries if entry.phase is Phase.STARTED]
        metrics().errors.labels("starved").inc()
        log.warning(
            "worker.starved",
            slot=child.slot,
            pid=child.pid,
            for_s=round((now - newest) / 1e9, 1),
            kinds=sorted({entry.kind for entry in running}),
            job_ids=[entry.job_id for entry in running][:20],
            reason=f"all {self._slots} slots are taken by jobs that do not end, while others waited for a slot",
            remedy="give long kinds a queue and workers of their own, a timeout, or raise SUPERVISOR_CONCURRENCY",
        )
