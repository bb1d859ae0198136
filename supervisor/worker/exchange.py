"""The one loop of a worker that speaks to the database: results out, jobs in.

    returned runs --> results ---+
                                 |  one round trip at a time, acks and the next claim together
    wake, free slots --> want ---+--> work() --> executor.take

While one round trip is under way the next results gather: batches form by themselves, without a timer.

Always true: after an answer was lost the session moves before anything is claimed again. Claiming stops while
results wait at their limit.

Elsewhere: the results that wait (results.py); what a claim asks for (marks.py); running jobs (executor.py).
"""

import asyncio
import random
import time
from collections.abc import Callable, Set
from typing import Final, Protocol

from supervisor.db import jobs
from supervisor.db.jobs import Answer, ClaimedJob, Settled
from supervisor.db.link import RETRYABLE, DatabaseError, Link, first_line
from supervisor.errors import DatabaseUnavailable, SessionClosed
from supervisor.log import Repeats, get_logger
from supervisor.metrics import metrics
from supervisor.outcome import Outcome
from supervisor.settings import Settings
from supervisor.wire.board import Board
from supervisor.worker.counts import Counts
from supervisor.worker.marks import Marks
from supervisor.worker.results import Results, keep_level
from supervisor.worker.run import Run
from supervisor.worker.session import Session

# Unknown kinds: so many in one batch are a flood; then so many rows are looked at in one statement, of jobs that have
# been due for so long.
_FLOOD: Final = 10
_LOOKED_AT: Final = 5000
_DUE_FOR_S: Final = 0.5
_PAUSE_S: Final = (0.05, 2.0)

log = get_logger("worker")


class Jobs(Protocol):
    """The executor, as the exchange sees it."""

    def room(self) -> int: ...
    def hands(self) -> int: ...
    def take(self, jobs: list[ClaimedJob], limited: Set[str] = frozenset()) -> None: ...
    def take_alone(self, job: ClaimedJob) -> None: ...
    def held(self) -> list[Run]: ...
    def forget(self, runs: list[Run]) -> None: ...


class Exchange:
    """Results out, jobs in.

    Args:
        known: the kinds that there are handlers for.
        on_dry: told when a claim came back short, with the seconds to the next job due (None: none), whether it took
            any, and whether jobs are due that wait for a place of their queue.
        on_full: told when a claim came back full or left jobs for want of hands: others may take them.
    """

    def __init__(
        self,
        *,
        link: Link,
        session: Session,
        marks: Marks,
        settings: Settings,
        board: Board,
        counts: Counts,
        known: tuple[str, ...],
        on_dry: Callable[[float | None, bool, bool], None],
        on_full: Callable[[], None],
    ) -> None:
        self._link = link
        self._session = session
        self._marks = marks
        self._schema = settings.schema_
        self._keep = keep_level(settings)
        self._unknown_limit_s = settings.unknown_kind_limit_s
        self._max_unacked = settings.max_unacked
        self._board = board
        self._counts = counts
        self._known = known
        self._on_dry = on_dry
        self._on_full = on_full
        self.executor: Jobs | None = None
        self._results = Results(
            link=link, session=session, settings=settings, board=board, counts=counts, on_settled=self._settled
        )
        self._event = asyncio.Event()
        self._want = True
        self._claiming = True
        self._closing = False
        self._answer_lost = False
        self._check = False
        self._suspect_asked: asyncio.Future[bool] | None = None
        self._repeats = Repeats()
        self._strangers = False
        self._limited: Set[str] = frozenset()  # queues with a limit, as the last claim found them
        self._failures = 0

    # ---- what others tell it

    def returned(self, run: Run) -> None:
        """Store *run*'s outcome, unless it is settled or lost already."""
        self._results.add(run)
        self._event.set()

    def room_made(self) -> None:
        """Jobs may start again, after a time when none could: look for some."""
        self._want = True
        self._event.set()

    def wake(self) -> None:
        """There is work to claim; and where the lease may have passed, see whether the session still lives."""
        self._want = True
        # With no hands free nothing would be sent for a while, and what runs here may run elsewhere too.
        self._check = bool(self._session.id) and time.monotonic() >= self._session.lease_until()
        self._event.set()

    async def claim_suspect(self) -> bool:
        """Claim one suspect and hand it to the executor, which is quiet; whether there was one."""
        if not self._claiming:
            return False
        self._suspect_asked = asyncio.get_running_loop().create_future()
        self._event.set()
        return await self._suspect_asked

    def _suspect_answered(self, found: bool) -> None:
        asked, self._suspect_asked = self._suspect_asked, None
        if asked is not None and not asked.done():
            asked.set_result(found)

    def stop_claiming(self) -> None:
        """Claim nothing more."""
        self._claiming = False
        self._suspect_answered(False)
        self._event.set()

    def close(self) -> None:
        """End `run` once every result is stored."""
        self._closing = True
        self._event.set()

    def tick(self) -> None:
        """Now and then: what the log owes is told."""
        self._results.tell_held_back()

    @property
    def unstored(self) -> int:
        """Results waiting."""
        return self._results.waiting

    @property
    def jobs_done(self) -> int:
        """Runs that have ended since the worker's start."""
        return self._results.jobs_done

    @property
    def released(self) -> int:
        """Jobs given back unstarted since then."""
        return self._results.released

    # ---- the loop

    async def run(self) -> None:
        """Serve until closed and everything is stored."""
        while True:
            try:
                await self._event.wait()
                self._event.clear()
                while self._pending():
                    await self._attempt()
            except asyncio.CancelledError:
                if self._closing:
                    raise
                self._interrupted()
                continue
            if self._closing:
                self._results.tell_held_back(all_=True)
                return

    async def _attempt(self) -> None:
        try:
            await self._round()
            self._failures = 0
        except SessionClosed:
            await self._lost_session()
        except DatabaseUnavailable as error:
            await self._pause("database.unreachable", error.reason)
        except DatabaseError as error:
            await self._pause("database.refused", f"{error.sqlstate}: {first_line(error)}")

    def _interrupted(self) -> None:
        """A handler cancelled every task it found, this one too. What was on its way may have been stored."""
        this = asyncio.current_task()
        if this is not None:
            this.uncancel()
        self._answer_lost = bool(self._session.id)
        self._results.doubt(self._results.all())
        self._want = True
        self._event.set()

    def _pending(self) -> bool:
        # A lost answer may have leased jobs to this worker that only moving on gives back: that cannot wait.
        owed = self._answer_lost or self._check or self._results.doubtful or self._suspect_asked is not None
        return bool(self.unstored or owed or (self._want and self._limit()))

    def _limit(self) -> int:
        if not self._claiming or self.executor is None or self.unstored >= self._max_unacked:
            return 0
        return self.executor.room()

    async def _round(self) -> None:
        if not self._session.id:
            await self._session.open()
        elif self._answer_lost:
            await self._move_session()
        if self._results.doubtful:
            await self._results.resolve_doubts()
        if self._results.unsettled:
            await self._results.settle()
        if self._results.unkept:
            kept = await self._results.keep_results()
            self._want = self._want or any(run.job.queue in self._limited for run in kept)  # a place is free
        if self._strangers and self._claiming:
            await self._pass_by()
        done = await self._results.gather()
        suspect = self._suspect_asked is not None
        limit = 1 if suspect else self._limit()
        check, self._check = self._check, False
        if not done and not check and not suspect and not (limit and self._want):
            return
        if (
            limit and not suspect
        ):  # else the wish to claim stays: it is granted when results are stored or hands are free
            self._want = False
        lanes, marks, lookback_s = self._plan(suspect) if limit else ([], [], 0.0)
        if not lanes:
            limit = 0
            if suspect:
                self._suspect_answered(False)
            elif not done and not check:
                self._on_dry(None, False, False)
            if not done and not check:
                return
        hands = limit if suspect or self.executor is None else self.executor.hands()
        sent = time.monotonic()
        try:
            answer = await self._link.call(
                lambda conn: jobs.work(
                    conn,
                    self._schema,
                    session=self._session.id,
                    acks=[run.ack() for run in done],
                    keep=self._keep,
                    lanes=lanes,
                    marks=marks,
                    limit=limit,
                    lookback_s=lookback_s,
                    hands=hands,
                )
            )
        except DatabaseUnavailable as error:
            self._want = self._want or limit > 0
            self._check = check
            if error.unsure:
                self._answer_lost = self._answer_lost or limit > 0
                self._results.doubt(done)
            raise
        except (SessionClosed, DatabaseError) as error:
            self._want = self._want or limit > 0
            if isinstance(error, DatabaseError) and error.sqlstate not in RETRYABLE:
                self._results.refused(len(done))
            raise
        self._counts.answered(answer.now, claimed=len(answer.jobs) if limit else None, acked=len(done), sent=sent)
        if done:
            self._results.acknowledged(done, answer.lost)
        if suspect and limit:
            self._claimed_suspect(answer)
        elif limit:
            self._take(answer)
            if answer.short and answer.jobs:
                await asyncio.sleep(0)  # they begin before the books are kept: somebody may wait for them
            self._claimed(lanes, answer, lookback_s)
        elif any(run.job.queue in self._limited for run in done):
            self._on_full()  # a place is free that this worker has no hands for

    def _plan(self, suspect: bool) -> tuple[list[jobs.Lane], list[jobs.Mark], float]:
        return self._marks.plan_suspects() if suspect else self._marks.plan()

    def _claimed_suspect(self, answer: Answer) -> None:
        for job in answer.jobs:
            if self.executor is not None:
                self.executor.take_alone(job)
        self._suspect_answered(bool(answer.jobs))

    def _take(self, answer: Answer) -> None:
        self._limited = answer.limited
        if answer.jobs and self.executor is not None:
            if self._claiming:
                self.executor.take(answer.jobs, answer.limited)
            else:
                self._release_claimed(answer.jobs)

    def _claimed(self, lanes: list[jobs.Lane], answer: Answer, lookback_s: float) -> None:
        self._marks.learn(lanes, answer, lookback_s)
        if answer.short:
            self._counts.dry()
            self._on_dry(answer.next_s, bool(answer.jobs), answer.blocked)
            if answer.left:
                self._on_full()
        else:
            self._want = True
            self._on_full()

    def _release_claimed(self, claimed: list[ClaimedJob]) -> None:
        """A claim that was under way when the drain began: hand all of it back at once."""
        for job in claimed:
            place = self._counts.place(job.queue)
            run = Run(job, self._board.claim(job.id, job.token, job.kind, suspect=job.suspect, queue=place))
            run.outcome = Outcome("released", reason="drain")
            self.returned(run)

    def _settled(self, batch: list[Run], settled: list[Settled]) -> None:
        # Nobody is notified of a retry: the next claim that comes back short tells when it is due. Nor of a
        # place that is free now.
        retries = any(item.due_in_s is not None and item.due_in_s > 0 for item in settled)
        self._want = self._want or retries or any(run.job.queue in self._limited for run in batch)
        unknown = sum(run.outcome is not None and run.outcome.event == "unknown" for run in batch)
        self._strangers = self._strangers or unknown >= max(_FLOOD, len(batch) // 2)

    async def _pass_by(self) -> None:
        """Kinds that nobody here knows fill the lanes: claimed one by one they would hold up all jobs behind them."""
        self._strangers = False
        lanes, marks = self._marks.where()
        moved, more = await self._link.call(
            lambda conn: jobs.put_back(
                conn,
                self._schema,
                lanes=lanes,
                marks=marks,
                known=self._known,
                due_s=_DUE_FOR_S,
                limit_s=self._unknown_limit_s,
                limit=_LOOKED_AT,
            )
        )
        metrics().unknown_kinds.inc(moved)
        self._strangers = more and moved >= _FLOOD
        self._want = True

    # ---- when things go wrong

    async def _move_session(self) -> None:
        held = [*(self.executor.held() if self.executor else []), *self._results.all()]
        moved = await self._session.move([(run.job.id, run.job.token) for run in held])
        self._answer_lost = False
        gone = [run for run in held if run.job.id not in moved]
        log.info("session.moved", held=len(held), gone=len(gone))
        self._drop(gone)

    async def _lost_session(self) -> None:
        """Taken for dead: every lease is lost. What runs is told to stop; claiming goes on under a new session."""
        held = [*(self.executor.held() if self.executor else []), *self._results.all()]
        self._session.lost()
        self._answer_lost = self._check = False
        self._want = True
        log.error(
            "session.closed",
            held=len(held),
            did="told running jobs to stop, dropped their results, opened a new session",
            remedy="the leases were not renewed in time; if this repeats, raise SUPERVISOR_LEASE_S",
        )
        self._drop(held)

    def _drop(self, gone: list[Run]) -> None:
        """Forget *gone*, whose leases are lost; but runs that commit by themselves find out by themselves."""
        gone = [run for run in gone if not run.finishing and not run.finished]
        if not gone:
            return
        waiting = self._results.drop(gone)
        if self.executor is not None:
            self.executor.forget([run for run in gone if id(run) not in waiting])

    async def _pause(self, event: str, reason: str) -> None:
        self._failures += 1
        least, most = _PAUSE_S
        pause = min(most, least * 2 ** min(self._failures, 10)) * (0.5 + random.random())
        metrics().errors.labels("exchange").inc()
        self._repeats.tell(log.warning, event, reason=reason, unstored=self.unstored, retry_in_s=round(pause, 2))
        await asyncio.sleep(pause)
