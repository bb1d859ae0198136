"""Results of runs that the database has not answered for yet.

    add --> done  --acks, with the next claim--> acknowledged -.
        --> kept  --acks with results, by themselves---------> |
        --> other --------------settle-----------------------> +--> counted, told, off the scoreboard
                                                               '--> lost, or in doubt --> resolve_doubts

Always true: a result stays here until the database has answered for it; before it leaves the scoreboard it is
counted. A result that cannot be stored as it is does not hold up the others. One whose answer was lost is in doubt:
should a later answer say that its lease is gone, the database is asked whether it had been stored before.

Elsewhere: when round trips are made, and what they claim (exchange.py).
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from supervisor.backoff import Backoff, evaluate
from supervisor.db import jobs
from supervisor.db.jobs import Settled, Settlement
from supervisor.db.link import RETRYABLE, DatabaseError, Link, first_line
from supervisor.errors import DatabaseUnavailable
from supervisor.log import Repeats, get_logger
from supervisor.metrics import metrics
from supervisor.outcome import Outcome
from supervisor.settings import Settings
from supervisor.wire.board import Board
from supervisor.worker.counts import Counts
from supervisor.worker.run import Run
from supervisor.worker.session import Session
from supervisor.worker.told import Told

_MOST: Final = 500
_MOST_TURNS: Final = 30
_MOST_RESULT_CHARS: Final = 1_000_000

log = get_logger("worker")


class Results:
    """What has ended and is not stored.

    Args:
        on_settled: told which runs a settlement was for, and what has become of those it reached.
    """

    def __init__(
        self,
        *,
        link: Link,
        session: Session,
        settings: Settings,
        board: Board,
        counts: Counts,
        on_settled: Callable[[list[Run], list[Settled]], None],
    ) -> None:
        self._link = link
        self._session = session
        self._schema = settings.schema_
        self._keep_level = keep_level(settings)
        self._default = Backoff(settings.retry_base_s, settings.retry_cap_s)
        self._unknown_limit_s = settings.unknown_kind_limit_s
        self._board = board
        self._counts = counts
        self._on_settled = on_settled
        self._done: list[Run] = []
        self._kept: list[Run] = []
        self._other: list[Run] = []
        self._in_doubt: set[int] = set()
        self._doubtful: list[Run] = []
        self._ack_batch = _MOST
        self._repeats = Repeats()
        self._told = Told()
        self.jobs_done = 0
        self.released = 0

    @property
    def waiting(self) -> int:
        """Results that wait."""
        return len(self._done) + len(self._kept) + len(self._other)

    @property
    def doubtful(self) -> bool:
        """Whether the database is to be asked for some that were lost."""
        return bool(self._doubtful)

    @property
    def unsettled(self) -> bool:
        """Whether some wait that an ack does not end."""
        return bool(self._other)

    def all(self) -> list[Run]:
        """Every run whose result waits."""
        return [*self._done, *self._kept, *self._other]

    def add(self, run: Run) -> None:
        """Keep *run*'s outcome to be stored, unless it is settled or lost already."""
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
            if run.too_late:
                self._repeats.tell(
                    log.warning,
                    "result.too_late",
                    job_id=run.job.id,
                    kind=run.job.kind,
                    reason="its transaction had ended the job before the handler returned",
                    remedy="call job.set_result(value) before the transaction ends",
                )
            if run.finished:
                self._count([(run, "done")])
            self._board.free(run.entry)
            self._counts.settled()
        elif outcome.event == "done":
            (self._done if run.result is None else self._kept).append(run)
        else:
            self._other.append(run)

    def tell_held_back(self, *, all_: bool = False) -> None:
        """What the log owes."""
        self._told.tell_held_back(all_=all_)

    # ---- acknowledged, with the next claim

    async def gather(self) -> list[Run]:
        """The next to acknowledge, with those that end within the next turns of the loop: a trip costs more than
        they do."""
        for _ in range(_MOST_TURNS if self._done else 0):
            before = len(self._done)
            await asyncio.sleep(0)
            if len(self._done) == before:
                break
        return self._done[: self._ack_batch]

    def acknowledged(self, runs: list[Run], lost: Iterable[int]) -> None:
        """The database has answered for *runs*, the first of those that wait; the leases of *lost* were gone."""
        self._ack_batch = min(_MOST, self._ack_batch * 2)
        del self._done[: len(runs)]
        gone = set(lost)
        self._report_lost([run for run in runs if run.job.id in gone])
        stored = [run for run in runs if run.job.id not in gone] if gone else runs
        self._count([(run, "done") for run in stored])
        if self._told.each:
            for run in stored:
                self._told.done(run)
        self._forget(runs)

    def refused(self, count: int) -> None:
        """One ack of *count* may be what was refused: go on with smaller batches, then pass it by."""
        if count == 1:
            self._done.append(self._done.pop(0))
        self._ack_batch = max(1, count // 2)

    # ---- acknowledged, with results

    @property
    def unkept(self) -> bool:
        """Whether some wait whose handlers returned something to be kept."""
        return bool(self._kept)

    async def keep_results(self) -> list[Run]:
        """Store the next of those, and return them.

        Raises:
            DatabaseUnavailable, DatabaseError: they were not stored, or it is not known; they wait.
        """
        batch: list[Run] = []
        size = 0
        for run in self._kept[:_MOST]:
            size += len(run.result or "")
            if batch and size > _MOST_RESULT_CHARS:
                break
            batch.append(run)
        await self._keep(batch)
        return batch

    async def _keep(self, batch: list[Run]) -> None:
        kept = [(run.ack(), result, kept_s) for run in batch for result, kept_s in [run.kept()] if result is not None]
        try:
            acked = await self._link.call(
                lambda conn: jobs.finish_with_results(
                    conn, self._schema, session=self._session.id, kept=kept, keep=self._keep_level
                )
            )
        except DatabaseUnavailable as error:
            if error.unsure:
                self.doubt(batch)
            raise
        except DatabaseError as error:
            if error.sqlstate in RETRYABLE or error.sqlstate is None:
                raise
            await self._keep_refused(batch, error)
            return
        gone = set(map(id, batch))
        self._kept = [run for run in self._kept if id(run) not in gone]
        self._report_lost([run for run in batch if run.job.id not in acked])
        stored = [run for run in batch if run.job.id in acked]
        self._count([(run, "done") for run in stored])
        for run in stored:
            self._told.done(run)
        self._forget(batch)

    async def _keep_refused(self, batch: list[Run], error: DatabaseError) -> None:
        """Some result cannot be stored: find it by halves; its job is dead, as for one that does not fit."""
        if len(batch) > 1:
            middle = len(batch) // 2
            await self._keep(batch[:middle])
            await self._keep(batch[middle:])
            return
        run = batch[0]
        log.error("result.refused", job_id=run.job.id, reason=f"{error.sqlstate}: {first_line(error)}")
        text = f"what the handler returned could not be stored ({error.sqlstate})"
        run.outcome, run.result = Outcome("dead", text, reason="result"), None
        self._kept.remove(run)
        self._other.append(run)

    # ---- settled

    async def settle(self) -> None:
        """Store the next of those that an ack does not end.

        Raises:
            DatabaseUnavailable, DatabaseError: they were not stored, or it is not known; they wait.
        """
        await self._settle(self._other[:_MOST])

    async def _settle(self, batch: list[Run]) -> None:
        try:
            settled = await self._link.call(
                lambda conn: jobs.settle(
                    conn,
                    self._schema,
                    session=self._session.id,
                    settlements=[settlement_of(run, self._default) for run in batch],
                    keep=self._keep_level,
                    unknown_limit_s=self._unknown_limit_s,
                )
            )
        except DatabaseUnavailable as error:
            if error.unsure:
                self.doubt(batch)
            raise
        except DatabaseError as error:
            if error.sqlstate in RETRYABLE or error.sqlstate is None:
                raise
            await self._settle_refused(batch, error)
            return
        self._on_settled(batch, settled)
        answered = {item.id: item for item in settled}
        self._report_lost([run for run in batch if run.job.id not in answered])
        gone = set(map(id, batch))
        self._other = [run for run in self._other if id(run) not in gone]
        for run in batch:
            if run.job.id in answered:
                self._told.stored(run, answered[run.job.id])
        self._count([(run, answered[run.job.id].status) for run in batch if run.job.id in answered])
        self._forget(batch)
        self.released += sum(not run.started for run in batch)

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

    # ---- lost, and in doubt

    def doubt(self, runs: Iterable[Run]) -> None:
        """The answer for *runs* was lost: they may have been stored."""
        self._in_doubt.update(run.job.id for run in runs)

    def drop(self, gone: list[Run]) -> set[int]:
        """Forget the results of *gone*, whose leases are lost; the id() of each run whose result had waited."""
        ids = set(map(id, gone))
        self._report_lost(gone)
        waiting = set()
        for run in self.all():
            waiting.add(id(run))
            if id(run) in ids:
                self._board.free(run.entry)
                self._in_doubt.discard(run.job.id)
        self._done = [run for run in self._done if id(run) not in ids]
        self._kept = [run for run in self._kept if id(run) not in ids]
        self._other = [run for run in self._other if id(run) not in ids]
        return waiting

    async def resolve_doubts(self) -> None:
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

    def _report_lost(self, runs: list[Run]) -> None:
        """Results that changed nothing: their leases had passed, or, of those in doubt, they were stored before."""
        self._say_lost([run.job.id for run in runs if run.job.id not in self._in_doubt])
        self._doubtful += [run for run in runs if run.job.id in self._in_doubt]

    def _say_lost(self, ids: list[int]) -> None:
        if ids:
            metrics().leases_lost.inc(len(ids))
            self._repeats.tell(log.warning, "lease.lost", job_ids=ids[:20], count=len(ids), did="dropped the results")

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


def settlement_of(run: Run, default: Backoff) -> Settlement:
    """How *run* ended, with the wait that its handler chose for a next attempt, or else *default*."""
    outcome = run.outcome or Outcome("released")
    backoff: Any = run.handler.backoff if run.handler is not None else None
    if outcome.event == "failed" and outcome.delay is None and callable(backoff):
        delay, problem = evaluate(backoff, run.job.attempt)
        if problem is not None:
            log.warning("backoff.ignored", kind=run.job.kind, job_id=run.job.id, reason=problem)
        outcome = replace(outcome, delay=delay)
    chosen = backoff if isinstance(backoff, Backoff) else default
    return Settlement(run.job.id, run.job.token, outcome, chosen.base, chosen.cap)


def keep_level(settings: Settings) -> int:
    """What history keeps of finished jobs: 0 nothing, 1 rows without payload, 2 all."""
    if settings.keep_history_days == 0:
        return 0
    return 2 if settings.keep_payload else 1
