"""Gives suspects their turn, without letting any number of them starve the rest.

    a death with several running jobs, a look at the lanes --> due --> ask the least busy worker to isolate
    its answer, or its death --> after as long again, the next spell

Bounds: at most a quarter of the workers, and at least one, isolate at once; after a spell the next one is
not before as long again has passed, unless a worker has nothing else to do. A worker that does not become
quiet is asked again after ten times the patience it was given, then with twice the patience, a minute at
most: suspects wait behind long jobs, long jobs never wait behind suspects for more than that.

Elsewhere: what a worker does (worker/isolation.py).
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from supervisor.parent.child import Child
from supervisor.wire.messages import Isolate, Isolated

_PATIENCE_S: Final = 1.0
_MOST_PATIENCE_S: Final = 60.0
_NOISE_PER_QUIET: Final = 10.0


class Isolation:
    """Who isolates, and when the next spell may begin.

    Args:
        workers: the workers that are ready.
        at_once: the most that isolate at the same time.
    """

    def __init__(self, *, workers: Callable[[], Iterable[Child]], at_once: int) -> None:
        self._workers = workers
        self._at_once = at_once
        self._due = False
        self._begun: dict[int, float] = {}  # pid -> when it was asked
        self._patience_s = _PATIENCE_S
        self._not_before = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def due(self) -> None:
        """There may be suspects that are due."""
        self._due = True
        self._grant()

    def due_in(self, seconds: float) -> None:
        """One will be due in so many seconds."""
        asyncio.get_running_loop().call_later(seconds, self.due)

    def idle(self, worker: Child) -> None:
        """*worker* found no more jobs: if it runs none, it may isolate at once."""
        if self._due and worker.load == 0 and worker.hungry:
            self._grant()

    def _grant(self) -> None:
        if not self._due or len(self._begun) >= self._at_once:
            return
        free = [worker for worker in self._workers() if worker.pid not in self._begun]
        if not free:
            return
        worker = min(free, key=lambda one: one.load)
        left = self._not_before - time.monotonic()
        if left > 0 and not (worker.hungry and worker.load == 0):
            self._again_in(left)
            return
        self._begun[worker.pid] = time.monotonic()
        worker.tell(Isolate(self._patience_s))

    def answered(self, worker: Child, answer: Isolated) -> None:
        """A spell is over."""
        took = time.monotonic() - self._begun.pop(worker.pid, time.monotonic())
        if not answer.quiet:
            self._rest(_NOISE_PER_QUIET * self._patience_s)
            self._patience_s = min(_MOST_PATIENCE_S, 2 * self._patience_s)
            return
        self._patience_s = _PATIENCE_S
        if answer.ran == 0:
            self._due = False
            return
        self._rest(took)

    def gone(self, worker: Child) -> None:
        """*worker* has died; perhaps of the suspect it ran."""
        begun = self._begun.pop(worker.pid, None)
        if begun is not None:
            self._rest(time.monotonic() - begun)

    def _rest(self, seconds: float) -> None:
        self._not_before = time.monotonic() + seconds
        self._again_in(0.0 if any(worker.hungry for worker in self._workers()) else seconds)

    def _again_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._grant)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
