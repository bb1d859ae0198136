"""What this worker's runs add to the metrics, added up and written once per round trip.

    started     a run begins: how long it waited, how fast a wake-up was
    stored      the database has answered for a run: what became of it, how long it took
    flush       to the files: after each answer, before the runs leave the scoreboard
    settled     they have left it

A worker may be killed anywhere. So that every run that was stored is counted once, the scoreboard says how
many this process has counted; when it is dead the parent compares that with the files, and counts the rest
(parent/recover.py). Waits and round trips of the last quarter of a second are lost: those are samples.

Elsewhere: the metrics (metrics/numbers.py).
"""

import time
from collections.abc import Iterable
from typing import Final

from supervisor.metrics import BatchedCounter, BatchedHistogram, Metrics, known_labels
from supervisor.metrics.numbers import BATCH_SIZES, RUN_SECONDS, TRIP_SECONDS, WAIT_SECONDS
from supervisor.wire.board import Board
from supervisor.worker.run import Run

_LOOKED_FOR: Final = ("done", "failed", "dead", "crashed")


class Counts:
    """The numbers of one worker's runs. On the loop only."""

    def __init__(self, numbers: Metrics, board: Board) -> None:
        self._board = board
        self._jobs = BatchedCounter(numbers.jobs, "queue", "kind", "outcome")
        self._released = BatchedCounter(numbers.released, "queue", "reason")
        self._retries = BatchedCounter(numbers.retries, "queue", "kind")
        self._runs = BatchedHistogram(numbers.job_run_seconds, RUN_SECONDS, "queue", "kind")
        self._waits = BatchedHistogram(numbers.job_wait_seconds, WAIT_SECONDS, "queue", "kind")
        self._acks = BatchedHistogram(numbers.ack_seconds, TRIP_SECONDS)
        self._wakes = BatchedHistogram(numbers.wake_seconds, TRIP_SECONDS)
        self._claims = BatchedCounter(numbers.claims)
        self._claim_sizes = BatchedHistogram(numbers.claim_batch, BATCH_SIZES)
        self._ack_sizes = BatchedHistogram(numbers.ack_batch, BATCH_SIZES)
        self._trips = BatchedHistogram(numbers.claim_seconds, TRIP_SECONDS)
        self._db_ahead = 0.0  # the database's clock less the monotonic one
        self._woken_at = 0.0
        self._counted = 0
        self._queues = {name: place for place, name in enumerate(known_labels("queue"), 1)}

    def show_zeros(self, known: Iterable[tuple[str, str]]) -> None:
        """Put the outcomes that alerts look for on the page, for *known* queues and kinds, before the first of them.

        Prometheus sees no increase in a series that begins at 1: the first death of a kind would be missed.
        """
        for key in known:
            for outcome in _LOOKED_FOR:
                self._jobs.inc((*key, outcome), 0)
        self._jobs.flush()

    def place(self, queue: str) -> int:
        """*queue*'s number on the scoreboard: its place among the known ones from 1, 0 for others."""
        return self._queues.get(queue, 0)

    def answered(self, database_s: float, *, claimed: int | None, acked: int, sent: float) -> None:
        """A round trip has ended; *database_s*: its clock; *claimed*: None if nothing was asked for."""
        now = time.monotonic()
        self._db_ahead = database_s - now
        if acked:
            self._ack_sizes.observe(acked)
        if claimed is not None:
            self._claims.inc()
            self._claim_sizes.observe(claimed)
            self._trips.observe(now - sent)

    def woken(self) -> None:
        """The parent says that there is work."""
        if not self._woken_at:
            self._woken_at = time.monotonic()

    def dry(self) -> None:
        """There was none."""
        self._woken_at = 0.0

    def started(self, run: Run) -> None:
        """*run* begins."""
        job = run.job
        key = (job.queue, job.kind)
        self._waits.observe(max(0.0, run.started + self._db_ahead - job.run_at), key)
        if job.attempt > 1:
            self._retries.inc(key)
        if self._woken_at:
            self._wakes.observe(run.started - self._woken_at)
            self._woken_at = 0.0

    def stored(self, run: Run, status: str, at: float) -> None:
        """The database has answered for *run*, whose job is now *status*; *at*: monotonic time of the answer."""
        job, outcome = run.job, run.outcome
        event = outcome.event if outcome is not None else "released"
        if run.started or status != "queued":
            self._jobs.inc((job.queue, job.kind, event if status == "queued" else status))
            self._counted += 1
        if run.started:
            self._runs.observe(run.ended - run.started, (job.queue, job.kind))
            self._acks.observe(at - run.ended)
        elif status == "queued":
            self._released.inc((job.queue, (outcome.reason if outcome is not None else None) or event))

    def flush(self) -> None:
        """Write what the database has stored."""
        self._jobs.flush()
        self._runs.flush()
        self._released.flush()
        self._retries.flush()

    def flush_samples(self) -> None:
        """Write the rest: what may be lost with the process. A few times a second, and at the end."""
        for batched in (
            self._waits, self._wakes, self._acks, self._claims, self._claim_sizes, self._ack_sizes,
            self._trips,
        ):  # fmt: skip
            batched.flush()

    def settled(self) -> None:
        """The runs that were flushed have left the scoreboard too."""
        self._board.set_header(counted=self._counted)
