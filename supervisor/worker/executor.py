"""Starts claimed jobs while there are free slots, and sees each to its end.

    exchange --take--> backlog --start--> running --returned--> exchange
                          |
                          +--give_back--> exchange (released)         draining, stuck, or quiet for a suspect
                          '--aside--> backlog                         a suspect that cannot run alone soon

`async def` handlers run on the loop, plain `def` handlers in threads, one per slot.

Always true: a job leaves the backlog once: it is started or it is given back. No job starts after this
worker's lease may have passed. A suspect runs alone. Whatever a handler raises, SystemExit included, is
that job's outcome. Each start and each end is on the scoreboard before anything else happens. A job for
which there is no thread or no memory is given back untouched, and nothing starts for a moment. Each run has
context variables of its own: what a handler sets there, no other run and no part of the worker sees.

Elsewhere: calling handlers (calls.py); storing results (results.py); what a handler's Job can do (run.py);
killing a worker whose handler ignores its deadline (parent/deadlines.py).
"""

import asyncio
import contextvars
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Set
from typing import Any, Protocol

from supervisor.clock import to_ns
from supervisor.db.jobs import ClaimedJob
from supervisor.errors import UnknownKind
from supervisor.handler import Handler
from supervisor.log import Repeats, enabled, get_logger
from supervisor.metrics import metrics
from supervisor.outcome import Outcome
from supervisor.settings import PREFETCH, PREFETCH_SHORT
from supervisor.wire.board import Board
from supervisor.worker.calls import Calls
from supervisor.worker.counts import Counts
from supervisor.worker.run import Run, TransactionDesk
from supervisor.worker.threads import NoThread, Threads
from supervisor.worker.tracing import Traces

_LEASE_RECHECK_S = 0.05
_FOR_EVER_S = 366 * 86400.0
_PREFETCH_FOR_S = 0.25
_SHORT_FOR_S = 0.02
_HANDS_FOR_S = 0.05
_STUCK_AFTER_S = 0.5
_MEAN_WEIGHT = 0.1
_STARVED_FOR_S = 0.5
_UNTOLD = Outcome("failed", "it ended, and how could not be written down: no memory left", None, "error")

log = get_logger("worker")


class Sink(Protocol):
    """Where ended runs go."""

    def returned(self, run: Run) -> None:
        """*run* has ended with run.outcome."""

    def room_made(self) -> None:
        """Jobs may start again, after a time when none could."""


class Executor:
    """The slots of one worker.

    Args:
        slots: The most jobs that run at once.
        prefetch: How many more may wait in the backlog; None: by how long jobs run.
        lease_until: The monotonic time until which this worker surely holds its leases.
    """

    def __init__(
        self,
        *,
        slots: int,
        prefetch: int | None,
        board: Board,
        counts: Counts,
        handlers: Mapping[str, Handler[Any]],
        desk: TransactionDesk,
        sink: Sink,
        lease_until: Callable[[], float],
        traces: Traces | None = None,
    ) -> None:
        self._slots = slots
        self._prefetch = PREFETCH if prefetch is None else prefetch
        self._prefetch_short = PREFETCH_SHORT if prefetch is None else 0
        self._board = board
        self._counts = counts
        self._handlers = handlers
        self._sink = sink
        self._lease_until = lease_until
        self._calls = Calls(board, desk, traces or Traces())
        self._backlog: deque[Run] = deque()
        self._limited: Set[str] = frozenset()  # queues with a limit, as the last claim found them
        self.running: dict[int, Run] = {}
        self._alone = False
        self._one_ended = asyncio.Event()
        self._stopped = False
        self._mean_s = 0.0  # how long jobs ran lately, an exponential mean
        self._moved_at = time.monotonic()  # when a slot last came free or was filled
        self._recheck: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._tells_starts = enabled("debug")
        self._outside = contextvars.copy_context()  # of any job
        self._threads = Threads(self._loop)
        self._resumes: asyncio.TimerHandle | None = None  # set while nothing starts for want of threads or memory
        self._repeats = Repeats(5.0)

    @property
    def waiting(self) -> int:
        """Jobs held and not started."""
        return len(self._backlog)

    def room(self) -> int:
        """How many jobs to claim now: enough to fill slots and backlog, or 0 while the backlog is half full."""
        prefetch = self._prefetch_now()
        if self._stopped or self._alone or self._resumes is not None or len(self._backlog) > prefetch // 2:
            return 0
        return max(0, self._slots + prefetch - len(self.running) - len(self._backlog))

    def _prefetch_now(self) -> int:
        """As many jobs as these slots start within _PREFETCH_FOR_S, judged by how long the last ones ran; more than
        the usual number only of such as start within _SHORT_FOR_S: others may be idle."""
        if self._mean_s <= 0:
            return self._prefetch
        at_once = self._slots / self._mean_s
        usual = min(self._prefetch, int(at_once * _PREFETCH_FOR_S))
        return max(usual, min(self._prefetch_short, int(at_once * _SHORT_FOR_S)))

    def hands(self) -> int:
        """How many jobs of queues with a limit to claim now.

        Such a job has a place of its queue, which others wait for, from its claim on: so it starts before all
        that waits here, and no more are claimed than there are free slots, or than come free within
        _HANDS_FOR_S. One at least where jobs are short enough to be prefetched: a worker that always has some
        in its backlog would else never claim one.
        """
        soon = 0
        if self._mean_s > 0:
            soon = min(self._prefetch_now(), max(1, int(self._slots * _HANDS_FOR_S / self._mean_s)))
        placed = sum(run.job.queue in self._limited for run in self._backlog)
        return max(0, max(self._slots - len(self.running), soon) - placed)

    def unstick(self) -> None:
        """Give the backlog back when no slot has come free for a while, and what is too much when jobs have become
        longer than those it was claimed after: other workers may have room."""
        if not self._backlog or self._alone or len(self.running) < self._slots:
            return
        stuck_s = time.monotonic() - self._moved_at
        if stuck_s >= _STUCK_AFTER_S:
            self._mean_s = max(self._mean_s, stuck_s)
            excess = self.give_back()
        else:
            in_time = int(self._slots * _PREFETCH_FOR_S / self._mean_s) if self._mean_s > 0 else len(self._backlog)
            excess = self._take_back(max(2 * self._prefetch, in_time))
        for run in excess:
            self._end(run, Outcome("released", reason="stuck"))

    def _take_back(self, kept: int) -> list[Run]:
        """The last of the backlog, which then has no more than *kept*."""
        return [self._backlog.pop() for _ in range(len(self._backlog) - kept)]

    def held(self) -> list[Run]:
        """Every run that has not returned."""
        return [*self.running.values(), *self._backlog]

    def take(self, jobs: list[ClaimedJob], limited: Set[str] = frozenset()) -> None:
        """Hold *jobs*, just claimed, and start what fits, those of the queues *limited* first."""
        self._limited = limited
        claim, place = self._board.claim, self._counts.place
        runs = [
            Run(job, claim(job.id, job.token, job.kind, suspect=job.suspect, queue=place(job.queue))) for job in jobs
        ]
        if limited:
            self._backlog.extendleft(run for run in reversed(runs) if run.job.queue in limited)
            runs = [run for run in runs if run.job.queue not in limited]
        self._backlog.extend(runs)
        if self._alone:  # claimed just before it became quiet
            for run in self.give_back():
                self._end(run, Outcome("released", reason="isolation"))
        self.fill()

    def fill(self) -> None:
        """Start jobs from the backlog while slots are free."""
        while self._backlog and not self._holds_back() and len(self.running) < self._slots:
            if time.monotonic() >= self._lease_until():
                # The leases may have passed: start nothing until the parent has renewed them.
                if self._recheck is None:
                    self._recheck = self._loop.call_later(_LEASE_RECHECK_S, self._check_lease)
                return
            self._try_start(self._backlog.popleft())

    def _holds_back(self) -> bool:
        return self._alone or self._stopped or self._resumes is not None

    def _check_lease(self) -> None:
        self._recheck = None
        self.fill()

    # ---- suspects, which run alone

    async def quiet(self, patience_s: float) -> bool:
        """Start nothing more, hand the backlog back, and wait until nothing runs; whether that came in time."""
        self._alone = True
        for run in self.give_back():
            self._end(run, Outcome("released", reason="isolation"))
        return await self._until_idle(patience_s)

    def take_alone(self, job: ClaimedJob) -> None:
        """Hold a suspect and start it; `ended` waits for it."""
        place = self._counts.place(job.queue)
        run = Run(job, self._board.claim(job.id, job.token, job.kind, suspect=True, queue=place))
        if self._stopped or not self._alone or self._resumes is not None or time.monotonic() >= self._lease_until():
            self._end(run, Outcome("released", reason="isolation"))
        else:
            self._try_start(run)

    async def ended(self) -> None:
        """Wait until nothing runs."""
        await self._until_idle(None)

    def resume(self) -> None:
        """Ordinary jobs may start again."""
        self._alone = False
        self.fill()

    async def _until_idle(self, patience_s: float | None) -> bool:
        try:
            async with asyncio.timeout(patience_s):
                while self.running:
                    self._one_ended.clear()
                    await self._one_ended.wait()
        except TimeoutError:
            return False
        return True

    def _try_start(self, run: Run) -> bool:
        """Start *run*; whether it runs now. One that cannot even be started ends as failed, and harms nobody else."""
        try:
            self._start(run)
        except (NoThread, MemoryError) as error:
            self._starved(run, error)
            return False
        except Exception as error:
            self.running.pop(run.job.id, None)
            run.ended = time.monotonic()
            if run.timer is not None:
                run.timer.cancel()
            self._end(run, Outcome.from_exception(error))
            return False
        return True

    def _starved(self, run: Run, error: BaseException) -> None:
        """Not this job's doing: give it and the backlog back, others may have room, and go on after a moment."""
        self.running.pop(run.job.id, None)
        if run.timer is not None:
            run.timer.cancel()
            run.timer = None
        if run.task is not None:
            run.task.cancel()  # before its first step
        run.started = 0.0
        if self._resumes is None:
            self._resumes = self._loop.call_later(_STARVED_FOR_S, self._resume_starting)
        for one in (run, *self.give_back()):
            self._end(one, Outcome("released", reason="starved"))
        metrics().errors.labels("start").inc()
        self._repeats.tell(
            log.error,
            "job.not_started",
            reason=repr(error),
            kind=run.job.kind,
            running=len(self.running),
            did="gave it and what waited back, uncharged; starting nothing for a moment",
            remedy="the process is at a limit of memory or threads: raise it, or lower SUPERVISOR_CONCURRENCY",
        )

    def _resume_starting(self) -> None:
        self._resumes = None
        self.fill()
        self._sink.room_made()

    def _start(self, run: Run) -> None:
        handler = self._handlers.get(run.job.kind)
        if handler is None:
            metrics().unknown_kinds.inc()
            raise UnknownKind(run.job.kind)
        if not handler.is_async:
            self._threads.reserve()
        job = run.job
        run.handler = handler
        run.started = time.monotonic()
        timeout = job.timeout_s if job.timeout_s is not None else handler.timeout
        deadline = math.inf if timeout is None else run.started + timeout
        if handler.signature.job_parameter is not None:
            run.context = self._calls.context(run, None if timeout is None else deadline)
        self.running[job.id] = run
        self._moved_at = run.started
        self._board.start(run.entry, 0 if timeout is None else to_ns(deadline + handler.kill_after))
        if self._tells_starts:
            log.debug("job.started", **run.log_fields())
        if timeout is not None:
            run.timer = self._loop.call_later(min(timeout, _FOR_EVER_S), run.stop, "timeout")
        self._counts.started(run)
        # Nothing may fail once the handler has been handed over: the job would be put down as ended while it runs.
        if handler.is_async:
            run.task = self._loop.create_task(self._run_async(run, handler), context=self._outside.copy())
            run.task.add_done_callback(lambda _: self._never_ran(run))
        else:
            call = self._outside.copy().run
            run.task = self._threads.submit(lambda _: self._returned(run), call, self._calls.call_sync, run, handler)

    async def _run_async(self, run: Run, handler: Handler[Any]) -> None:
        await self._calls.call_async(run, handler)
        self._outside.copy().run(self._returned, run)  # which starts the next

    def _never_ran(self, run: Run) -> None:
        if run.outcome is None:
            self._calls.never_called(run)
            self._returned(run)

    def _returned(self, run: Run) -> None:
        if run.timer is not None:
            run.timer.cancel()
            run.timer = None
        self.running.pop(run.job.id, None)
        run.task = None
        if run.outcome is None:
            run.ended, run.outcome = time.monotonic(), _UNTOLD
        self._moved_at = run.ended
        self._mean_s += _MEAN_WEIGHT * (run.ended - run.started - self._mean_s)
        self._one_ended.set()
        self._sink.returned(run)
        self.fill()

    def _end(self, run: Run, outcome: Outcome) -> None:
        """End a run that never started."""
        run.outcome = outcome
        self._board.return_(run.entry, outcome.event, outcome.error, outcome.delay, outcome.reason)
        self._sink.returned(run)

    def give_back(self) -> list[Run]:
        """Empty the backlog; the caller releases what it returns."""
        runs = list(self._backlog)
        self._backlog.clear()
        return runs

    def hand_back(self, queue: str) -> None:
        """Release what waits of *queue*, which was paused."""
        paused = [run for run in self._backlog if run.job.queue == queue]
        if paused:
            self._backlog = deque(run for run in self._backlog if run.job.queue != queue)
            for run in paused:
                self._end(run, Outcome("released", reason="paused"))

    def cancel(self, job_id: int, token: int) -> Run | None:
        """Tell this run to stop; one that has not started is handed back. The run; None if it is not held."""
        run = self.running.get(job_id)
        if run is not None and run.job.token == token:
            return run if run.stop("cancel") else None
        for run in self._backlog:
            if (run.job.id, run.job.token) == (job_id, token):
                self._backlog.remove(run)
                self._end(run, Outcome("released", reason="cancel"))
                return run
        return None

    def stop_starting(self) -> None:
        """Start nothing more, and release what waits."""
        self._stopped = True
        for run in self.give_back():
            self._end(run, Outcome("released", reason="drain"))

    def forget(self, runs: list[Run]) -> None:
        """The leases of *runs* are lost: unstarted ones are dropped, running ones told to stop."""
        gone = set(map(id, runs))
        for run in runs:
            run.lost = True
            if run.started:
                run.stop("lease")
            else:
                self._board.free(run.entry)
        self._backlog = deque(run for run in self._backlog if id(run) not in gone)

    def interrupt(self) -> None:
        """The drain deadline has passed: cancel what can be cancelled."""
        for run in list(self.running.values()):
            run.stop("drain")
