"""The one loop of a worker that speaks to the database: results out, jobs in.

    returned runs --> results ---+
                                 |  one round trip at a time, acks and the next claim together
    wake, free slots --> want ---+--> work() --> executor.take

While one round trip is under way the next results gather: batches form by themselves, without a timer.

Always true: a result stays here until the database has answered for it. After an answer was lost the
session moves before anything is claimed again. A result that cannot be stored as it is does not hold up
the others. Claiming stops while results wait at their limit.

Elsewhere: what a claim asks for (marks.py); running jobs (executor.py).
"""

import asyncio
import random
import time
from collections.abc import Callable, Set
from dataclasses import replace
from typing import Any, Final, Protocol

from supervisor.backoff import Backoff, evaluate
from supervisor.db import jobs
from supervisor.db.jobs import Answer, ClaimedJob, Settlement
from supervisor.db.link import RETRYABLE, DatabaseError, Link, first_line
from supervisor.errors import DatabaseUnavailable, SessionClosed
from supervisor.log import Repeats, get_logger
from supervisor.metrics import metrics
from supervisor.outcome import Outcome
from supervisor.settings import Settings
from supervisor.wire.board import Board
from supervisor.worker.counts import Counts
from supervisor.worker.marks import Marks
from supervisor.worker.run import Run
from supervisor.worker.session import Session
from supervisor.worker.told import Told

_MOST_RESULTS: Final = 500
_MOST_TURNS: Final = 30
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
        on_dry: told when a claim came back short, with the seconds to the next job due (None: none), and
            whether jobs are due that wait for a place of their queue.
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
        on_dry: Callable[[float | None, bool], None],
        on_full: Callable[[], None],
    ) -> None:
        self._link = link
        self._session = session
        self._marks = marks
        self._schema = settings.schema_
        self._keep = keep_level(settings)
        self._default = Backoff(settings.retry_base_s, settings.retry_cap_s)
        self._unknown_limit_s = settings.unknown_kind_limit_s
        self._max_unacked = settings.max_unacked
        self._board = board
        self._counts = counts
        self._known = known
        self._on_dry = on_dry
        self._on_full = on_full
        self.executor: Jobs | None = None
        self._done: list[Run] = []
        self._other: list[Run] = []
        self._event = asyncio.Event()
        self._want = True
        self._claiming = True
        self._closing = False
        self._answer_lost = False
        self._check = False
        self._suspect_asked: asyncio.Future[bool] | None = None
        self._in_doubt: set[int] = set()
        self._doubtful: list[Run] = []
        self._ack_batch = _MOST_RESULTS
        self._repeats = Repeats()
        self._told = Told()
        self._strangers = False
        self._limited: Set[str] = frozenset()  # queues with a limit, as the last claim found them
        self._failures = 0
        self.jobs_done = 0
        self.released = 0

    # ---- what others tell it

    def returned(self, run: Run) -> None:
        """Store *run*'s outcome, unless it is settled or lost already."""
        outcome = run.outcome
        if outcome is None:
            return
        if run.started:
            self.jobs_done += 1
        if run.unsure:
            self._in_doubt.add(run.job.id)
        if run.lost or run.finished:
            if run.finished and outcome.event != "done":
                log.warning("job.raised_after_commit", job_id=run.job.id, kind=run.job.kind, error=outcome.error)
            if run.finished:
                self._count([(run, "done")])
            self._board.free(run.entry)
            self._counts.settled()
        elif outcome.event == "done":
            self._done.append(run)
        else:
            self._other.append(run)
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
        self._told.tell_held_back()

    @property
    def unstored(self) -> int:
        """Results waiting."""
        return len(self._done) + len(self._other)

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
                self._told.tell_held_back(all_=True)
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
        self._in_doubt.update(run.job.id for run in (*self._done, *self._other))
        self._want = True
        self._event.set()

    def _pending(self) -> bool:
        # A lost answer may have leased jobs to this worker that only moving on gives back: that cannot wait.
        owed = self._answer_lost or self._check or self._doubtful or self._suspect_asked is not None
        return bool(self._done or self._other or owed or (self._want and self._limit()))

    def _limit(self) -> int:
        if not self._claiming or self.executor is None or self.unstored >= self._max_unacked:
            return 0
        return self.executor.room()

    async def _gather(self) -> None:
        """Let jobs that end within the next turns of the loop come along: a trip costs more than they do."""
        for _ in range(_MOST_TURNS):
            before = len(self._done)
            await asyncio.sleep(0)
            if len(self._done) == before:
                return

    async def _round(self) -> None:
        if not self._session.id:
            await self._session.open()
        elif self._answer_lost:
            await self._move_session()
        if self._doubtful:
            await self._resolve_doubts()
        if self._other:
            await self._settle(self._other[:_MOST_RESULTS])
        if self._strangers and self._claiming:
            await self._pass_by()
        await self._gather()
        done = self._done[: self._ack_batch]
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
                self._on_dry(None, False)
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
                self._in_doubt.update(run.job.id for run in done)
            raise
        except (SessionClosed, DatabaseError) as error:
            self._want = self._want or limit > 0
            if isinstance(error, DatabaseError) and error.sqlstate not in RETRYABLE:
                self._ack_refused(len(done))
            raise
        self._ack_batch = min(_MOST_RESULTS, self._ack_batch * 2)
        del self._done[: len(done)]
        self._acknowledged(done, answer, sent, limit)
        if suspect and limit:
            self._claimed_suspect(answer)
        elif limit:
            self._claimed(lanes, answer, limit, lookback_s)
        elif any(run.job.queue in self._limited for run in done):
            self._on_full()  # a place is free that this worker has no hands for

    def _plan(self, suspect: bool) -> tuple[list[jobs.Lane], list[jobs.Mark], float]:
        return self._marks.plan_suspects() if suspect else self._marks.plan()

    def _claimed_suspect(self, answer: Answer) -> None:
        for job in answer.jobs:
            if self.executor is not None:
                self.executor.take_alone(job)
        self._suspect_answered(bool(answer.jobs))

    def _ack_refused(self, count: int) -> None:
        """One ack of the batch may be what was refused: go on with smaller ones, then pass it by."""
        if count == 1:
            self._done.append(self._done.pop(0))
        self._ack_batch = max(1, count // 2)

    def _acknowledged(self, done: list[Run], answer: Answer, sent: float, limit: int) -> None:
        self._counts.answered(answer.now, claimed=len(answer.jobs) if limit else None, acked=len(done), sent=sent)
        if answer.lost:
            lost = set(answer.lost)
            self._report_lost([run for run in done if run.job.id in lost])
            self._count([(run, "done") for run in done if run.job.id not in lost])
        else:
            self._count([(run, "done") for run in done])
        if self._told.each:
            for run in done:
                if run.job.id not in answer.lost:
                    self._told.done(run)
        self._forget(done)

    def _count(self, stored: list[tuple[Run, str]]) -> None:
        """Runs that the database has stored, with what their jobs are now; before they leave the scoreboard."""
        now = time.monotonic()
        for run, status in stored:
            self._counts.stored(run, status, now)
        self._counts.flush()

    def _forget(self, runs: list[Run]) -> None:
        for run in runs:
            self._board.free(run.entry)
            self._in_doubt.discard(run.job.id)
        self._counts.settled()

    def _claimed(self, lanes: list[jobs.Lane], answer: Answer, limit: int, lookback_s: float) -> None:
        self._marks.learn(lanes, answer, lookback_s)
        self._limited = answer.limited
        if answer.jobs and self.executor is not None:
            if self._claiming:
                self.executor.take(answer.jobs, answer.limited)
            else:
                self._release_claimed(answer.jobs)
        if answer.short:
            self._counts.dry()
            self._on_dry(answer.next_s, answer.blocked)
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

    async def _settle(self, batch: list[Run]) -> None:
        try:
            settled = await self._link.call(
                lambda conn: jobs.settle(
                    conn,
                    self._schema,
                    session=self._session.id,
                    settlements=[self._settlement(run) for run in batch],
                    keep=self._keep,
                    unknown_limit_s=self._unknown_limit_s,
                )
            )
        except DatabaseUnavailable as error:
            if error.unsure:
                self._in_doubt.update(run.job.id for run in batch)
            raise
        except DatabaseError as error:
            if error.sqlstate in RETRYABLE or error.sqlstate is None:
                raise
            await self._settle_refused(batch, error)
            return
        # Nobody is notified of a retry: the next claim that comes back short tells when it is due. Nor of a
        # place that is free now.
        retries = any(item.due_in_s is not None and item.due_in_s > 0 for item in settled)
        self._want = self._want or retries or any(run.job.queue in self._limited for run in batch)
        answered = {item.id: item for item in settled}
        lost = [run for run in batch if run.job.id not in answered]
        if lost:
            self._report_lost(lost)
        gone = set(map(id, batch))
        self._other = [run for run in self._other if id(run) not in gone]
        for run in batch:
            if run.job.id in answered:
                self._told.stored(run, answered[run.job.id])
        self._count([(run, answered[run.job.id].status) for run in batch if run.job.id in answered])
        self._forget(batch)
        self.released += sum(not run.started for run in batch)
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

    async def _settle_refused(self, batch: list[Run], error: DatabaseError) -> None:
        """Some result cannot be stored as it is: find it by halves, and store it without its text."""
        if len(batch) > 1:
            middle = len(batch) // 2
            await self._settle(batch[:middle])
            await self._settle(batch[middle:])
            return
        run = batch[0]
        if run.outcome is None or run.outcome.reason == "unstorable":
            raise error
        log.error("result.refused", job_id=run.job.id, reason=f"{error.sqlstate}: {first_line(error)}")
        text = f"the result could not be stored as it was ({error.sqlstate})"
        run.outcome = replace(run.outcome, error=text, reason="unstorable")
        await self._settle(batch)

    def _settlement(self, run: Run) -> Settlement:
        outcome = run.outcome or Outcome("released")
        backoff: Any = run.handler.backoff if run.handler is not None else None
        if outcome.event == "failed" and outcome.delay is None and callable(backoff):
            delay, problem = evaluate(backoff, run.job.attempt)
            if problem is not None:
                log.warning("backoff.ignored", kind=run.job.kind, job_id=run.job.id, reason=problem)
            outcome = replace(outcome, delay=delay)
        chosen = backoff if isinstance(backoff, Backoff) else self._default
        return Settlement(run.job.id, run.job.token, outcome, chosen.base, chosen.cap)

    # ---- when things go wrong

    def _report_lost(self, runs: list[Run]) -> None:
        """Results that changed nothing: their leases had passed, or, of those in doubt, they were stored before."""
        self._say_lost([run.job.id for run in runs if run.job.id not in self._in_doubt])
        self._doubtful += [run for run in runs if run.job.id in self._in_doubt]

    def _say_lost(self, ids: list[int]) -> None:
        if ids:
            metrics().leases_lost.inc(len(ids))
            self._repeats.tell(log.warning, "lease.lost", job_ids=ids[:20], count=len(ids), did="dropped the results")

    async def _resolve_doubts(self) -> None:
        """Ask which of the results in doubt were stored: only the others lost their leases."""
        doubtful = list(self._doubtful)
        asked = [
            (run.job.id, run.job.token, run.outcome is not None and run.outcome.event == "done") for run in doubtful
        ]
        lost = set(await self._link.call(lambda conn: jobs.overtaken(conn, self._schema, asked)))
        del self._doubtful[: len(doubtful)]
        self._say_lost(sorted(lost))
        self._count([(run, "queued") for run in doubtful if run.job.id not in lost])
        self._counts.settled()

    async def _move_session(self) -> None:
        held = [*(self.executor.held() if self.executor else []), *self._done, *self._other]
        moved = await self._session.move([(run.job.id, run.job.token) for run in held])
        self._answer_lost = False
        gone = [run for run in held if run.job.id not in moved]
        log.info("session.moved", held=len(held), gone=len(gone))
        self._drop(gone)

    async def _lost_session(self) -> None:
        """Taken for dead: every lease is lost. What runs is told to stop; claiming goes on under a new session."""
        held = [*(self.executor.held() if self.executor else []), *self._done, *self._other]
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
        ids = set(map(id, gone))
        self._report_lost(gone)
        waiting = set()
        for run in (*self._done, *self._other):
            waiting.add(id(run))
            if id(run) in ids:
                self._board.free(run.entry)
                self._in_doubt.discard(run.job.id)
        self._done = [run for run in self._done if id(run) not in ids]
        self._other = [run for run in self._other if id(run) not in ids]
        if self.executor is not None:
            self.executor.forget([run for run in gone if id(run) not in waiting])

    async def _pause(self, event: str, reason: str) -> None:
        self._failures += 1
        least, most = _PAUSE_S
        pause = min(most, least * 2 ** min(self._failures, 10)) * (0.5 + random.random())
        metrics().errors.labels("exchange").inc()
        self._repeats.tell(log.warning, event, reason=reason, unstored=self.unstored, retry_in_s=round(pause, 2))
        await asyncio.sleep(pause)


def keep_level(settings: Settings) -> int:
    """What history keeps of finished jobs: 0 nothing, 1 rows without payload, 2 all."""
    if settings.keep_history_days == 0:
        return 0
    return 2 if settings.keep_payload else 1
