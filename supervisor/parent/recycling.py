"""Replacing workers that are past a limit: jobs run, memory grown, age.

    ready --past a limit--> drain --> gone: the next one may go
                              '-- does not even hear of it by the drain's end --> killed

Always true: one worker is being replaced at a time, so that a service is never short of more than one for it. Each
worker's limits of jobs and age differ by up to a tenth from the settings': those that were started together are not
replaced together.

Elsewhere: filling the slot again (fleet.py); limits that make no sense (limits.py).
"""

import random
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from supervisor.clock import remaining
from supervisor.grace import KILL_AFTER_DRAIN_S
from supervisor.log import get_logger
from supervisor.metrics import metrics
from supervisor.parent.child import Child
from supervisor.parent.states import State
from supervisor.settings import Settings
from supervisor.wire.board import Phase

_NAMED: Final = 20  # jobs named in one log line
_SPREAD: Final = (0.9, 1.1)

log = get_logger("fleet")


class _Limits(NamedTuple):
    """How long one worker stays; infinite where nothing is set."""

    age_s: float
    jobs: float


class Recycling:
    """Whose turn it is to be replaced."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limits: dict[Child, _Limits] = {}
        self._leaving: Child | None = None
        self._leaves_by = 0.0

    def born(self, child: Child) -> None:
        """A worker was started: from now on its limits count."""
        settings = self._settings
        self._limits[child] = _Limits(
            (settings.max_age_s or float("inf")) * random.uniform(*_SPREAD),
            (settings.max_jobs or float("inf")) * random.uniform(*_SPREAD),
        )

    def gone(self, child: Child) -> None:
        """A worker has exited."""
        self._limits.pop(child, None)
        if self._leaving is child:
            self._leaving = None

    def look(self, ready: Iterable[Child]) -> None:
        """Replace one of *ready* that is past a limit; the next one only when that one is gone."""
        if self._leaving is not None:
            self._end_if_deaf(self._leaving)
            return
        now = time.monotonic()
        for child in ready:
            board = child.board.read_header()
            limits = self._limits[child]
            grown_mb = (board.rss - child.birth_rss) / 2**20
            most_mb = self._settings.max_rss_mb
            if most_mb is not None and grown_mb > most_mb:
                reason = "max_rss"
            elif board.ended >= limits.jobs:
                reason = "max_jobs"
            elif now - child.born > limits.age_s:
                reason = "max_age"
            else:
                continue
            log.info(
                "worker.recycling",
                slot=child.slot,
                pid=child.pid,
                reason=reason,
                jobs=board.ended,
                grown_mb=round(grown_mb, 1),
                age_s=round(now - child.born, 1),
            )
            self._leaving = child
            self._leaves_by = now + self._settings.drain_timeout_s
            child.drain(self._leaves_by, "recycle")
            return

    def _end_if_deaf(self, child: Child) -> None:
        """End a worker that should have left to be replaced and does not even hear: a handler holds its interpreter.

        It would keep what it holds, and every other worker from being replaced, for ever.
        """
        if child.state is State.KILLED or remaining(self._leaves_by + KILL_AFTER_DRAIN_S) > 0:
            return
        running = [entry for entry in child.snapshot().entries if entry.phase is Phase.STARTED]
        metrics().errors.labels("recycle").inc()
        log.error(
            "worker.killed",
            slot=child.slot,
            pid=child.pid,
            kinds=sorted({entry.kind for entry in running}),
            job_ids=[entry.job_id for entry in running][:_NAMED],
            reason=f"it was to be replaced and had not left {self._settings.drain_timeout_s:g} s later",
            did="killed it; what it ran is queued again, uncharged",
            remedy="give these kinds a timeout, or run what never returns to Python in a process of its own",
        )
        child.kill("recycle")
