"""Decides when which worker looks for jobs.

    notification --due now--> wake one hungry worker          (none hungry: the next to say so is woken)
                 --due later--> heap of due times --timer--> wake one
    worker says More ----------> wake another                 (all are busy within log N steps)
    worker says Hungry(next) --> heap
    poll ----------------------> look once for everyone       (covers lost notifications)
    jobs wait for a place of their queue --> half a second later, wake one: whoever freed a place may have been
                                             busy, on another node, or dead
    jobs wait at gates --> gates.py lets them in, and they come as a notification
    a queue is paused, resumed, limited --> queues.py; a paused queue's notifications wake nobody

Always true: a worker has at most one wake outstanding; one that does not answer within 100 ms does not
keep the job waiting, another is woken. A notification that met no hungry worker is remembered until one
is. The heap is bounded: what it has no room for is found by the poll.

Elsewhere: hearing notifications (db/listener.py); marks (worker/marks.py).
"""

import asyncio
import heapq
import random
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from pydantic_core import from_json

from supervisor.clock import DbClock
from supervisor.log import Repeats, get_logger
from supervisor.metrics import metrics
from supervisor.wire.messages import SetBack, Wake

_ANSWER_S: Final = 0.1
_MOST_DUE: Final = 1000
_AT_ONCE_S: Final = 0.001
_BLOCKED_S: Final = 0.5
_LATE_COMMIT_S: Final = 0.2
_FAR_S: Final = 3600.0

log = get_logger("waker")


class Wakeable(Protocol):
    """A worker that can be woken."""

    hungry: bool
    woken_at: float

    @property
    def load(self) -> int:
        """Jobs it runs."""

    def wake(self, message: Wake) -> None:
        """Tell it to look."""


class Waker:
    """Wakes workers.

    Args:
        workers: the workers that are ready, in any order.
        clock: the database's clock, for due times in notifications.
        on_cancel: called with (job id, session, token, seconds until its worker may be killed for it or None) of a
            job that an operator cancelled.
        on_queue: called with a queue and its priorities (empty: unknown) that a notification named.
        on_gates: called with the time (epoch seconds) from which jobs at gates are to be looked at.
        on_settings: called with a queue and its new settings, as a notification has them.
        paused: whether a queue is paused, as far as is known here.
    """

    def __init__(
        self,
        *,
        workers: Callable[[], Iterable[Wakeable]],
        clock: DbClock,
        on_cancel: Callable[[int, int, int, float | None], None],
        on_queue: Callable[[str, list[int]], list[tuple[str, int]]],
        on_look: Callable[[float], None] = lambda _: None,
        on_gates: Callable[[float], None] = lambda _: None,
        on_settings: Callable[[str, dict[str, Any]], None],
        paused: Callable[[str], bool],
    ) -> None:
        self._workers = workers
        self._clock = clock
        self._on_cancel = on_cancel
        self._on_queue = on_queue
        self._on_look = on_look
        self._on_gates = on_gates
        self._on_settings = on_settings
        self._paused = paused
        self._blocked: asyncio.TimerHandle | None = None
        self._unserved: Wake | None = None
        self._due: list[float] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._repeats = Repeats()
        self.notices = 0

    # ---- notifications

    def notice(self, payload: str) -> None:
        """Act on one notification of the schema's channel; nonsense is counted and ignored."""
        self._act_on(payload)
        self.notices += 1
        metrics().notices.inc()  # afterwards: a job waits

    def _act_on(self, payload: str) -> None:
        try:
            told: dict[str, Any] = from_json(payload)
            if "look" in told:  # before the rest: to older releases it is the cancelling of no job
                self._on_look(float(told["look"]))
                return
            if "cancel" in told:
                kill = told.get("kill")
                kill_s = None if kill is None else float(kill)
                self._on_cancel(int(told["cancel"]), int(told["session"]), int(told["claims"]), kill_s)
                return
            queue, at = str(told["queue"]), float(told["at"])
            if "gate" in told:  # to older releases it is a job of a queue without a name
                self._on_gates(at)
                return
            if "settings" in told:
                self._on_settings(queue, dict(told["settings"]))
                return
            priorities = [int(priority) for priority in told["priorities"] or ()]
        except (ValueError, TypeError, KeyError, RecursionError):
            metrics().errors.labels("notice").inc()
            self._repeats.tell(log.warning, "notice.unreadable", length=len(payload))
            return
        lanes = self._on_queue(queue, priorities)
        if self._paused(queue):
            return
        due_in = at - self._clock.now()
        if due_in > _AT_ONCE_S:
            self.due_in(due_in)
            return
        # A job stamped a while before it was committed lies behind the marks: say how far back to look.
        set_back: tuple[SetBack, ...] = ()
        if due_in < -_LATE_COMMIT_S:
            at_us = int(at * 1e6) - 1
            set_back = tuple(SetBack(name, priority, at_us) for name, priority in lanes)
        self.wake(Wake(queue, set_back), "notice")

    def due_in(self, seconds: float) -> None:
        """A job will be due in so many seconds."""
        if seconds > _FAR_S:
            return  # found by a poll long before
        due = time.monotonic() + max(0.0, seconds)
        if len(self._due) >= _MOST_DUE:
            if due >= max(self._due):
                return
            self._due = sorted(self._due)[: _MOST_DUE // 2]
        heapq.heappush(self._due, due)
        self._arm()

    def _arm(self) -> None:
        if not self._due:
            return
        if self._timer is not None:
            if self._timer_at <= self._due[0]:
                return
            self._timer.cancel()
        self._timer_at = self._due[0]
        self._timer = asyncio.get_running_loop().call_later(max(0.0, self._timer_at - time.monotonic()), self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = time.monotonic()
        rang = False
        while self._due and self._due[0] <= now + _AT_ONCE_S:
            heapq.heappop(self._due)
            rang = True
        if rang:
            self.wake(Wake(), "due")
        self._arm()

    # ---- workers

    def wake(self, message: Wake, reason: str) -> None:
        """Wake one hungry worker, the least busy; remember it when there is none."""
        best: Wakeable | None = None
        least = 0
        for worker in self._workers():
            if worker.hungry:
                load = worker.load
                if best is None or load < least:
                    best, least = worker, load
                if load == 0:
                    break
        if best is None:
            self._unserved = message if self._unserved is None else _both(self._unserved, message)
            return
        self._send(best, message, reason)

    def wake_all(self, message: Wake, reason: str) -> None:
        """Wake every hungry worker."""
        for worker in list(self._workers()):
            if worker.hungry:
                self._send(worker, message, reason)

    def _send(self, worker: Wakeable, message: Wake, reason: str) -> None:
        worker.hungry = False
        worker.woken_at = time.monotonic()
        worker.wake(message)
        metrics().wakes.labels(reason).inc()
        asyncio.get_running_loop().call_later(_ANSWER_S, self._check, worker, worker.woken_at, message)

    def _check(self, worker: Wakeable, woken_at: float, message: Wake) -> None:
        """A worker that did not answer may be stopped or blocked: let another look."""
        if worker.woken_at == woken_at:
            self.wake(message, "no_answer")

    def hungry(self, worker: Wakeable, next_s: float | None, blocked: bool = False) -> None:
        """*worker* looked and found no more, or no more than jobs that wait for a place of their queue (*blocked*)."""
        worker.woken_at = 0.0
        worker.hungry = True
        if blocked and self._blocked is None:
            pause = _BLOCKED_S * random.uniform(0.8, 1.2)
            self._blocked = asyncio.get_running_loop().call_later(pause, self._look_for_places)
        if next_s is not None:
            self.due_in(next_s)
        if self._unserved is not None:
            message, self._unserved = self._unserved, None
            self._send(worker, message, "unserved")

    def _look_for_places(self) -> None:
        self._blocked = None
        self.wake(Wake(), "place")

    def more(self, worker: Wakeable) -> None:
        """*worker* took all it can: there may be more."""
        worker.woken_at = 0.0
        worker.hungry = False
        self.wake_if_any(Wake(), "more")

    def wake_if_any(self, message: Wake, reason: str) -> None:
        """Wake one if one is hungry; else let it be: the busy ones claim again by themselves."""
        if any(worker.hungry for worker in self._workers()):
            self.wake(message, reason)

    def close(self) -> None:
        """Stop the timer."""
        for timer in (self._timer, self._blocked):
            if timer is not None:
                timer.cancel()
        self._due.clear()


def _both(first: Wake, second: Wake) -> Wake:
    """One wake for two: the set-backs of both, at most as many as matter."""
    points: dict[tuple[str, int], int] = {}
    for queue, priority, at_us in (*first.set_back, *second.set_back):
        key = (queue, priority)
        points[key] = min(at_us, points.get(key, at_us))
    backs = [at for at in (first.all_back_to_us, second.all_back_to_us) if at is not None]
    if len(points) > 100:
        backs.append(min(points.values()))
        points = {}
    return Wake(
        first.queue if first.queue == second.queue else None,
        tuple(SetBack(queue, priority, at) for (queue, priority), at in points.items()),
        min(backs) if backs else None,
    )
