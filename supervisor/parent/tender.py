"""Keeps the queue's tables right, whoever enqueues and whoever dies.

Each tick, one supervisor of all (whoever gets a transaction-level try-lock; the others skip):

    reap        close sessions that nobody renewed
    discover    find lanes that were never announced
    low water   where each lane's unclaimed rows begin
    sweep       what lies behind that of ten seconds ago: late commits, rolled-back claims, jobs of
                closed sessions. Everything else of a lane at a duty cycle of 1/50, and at once after
                a session was reaped.
    publish     raise a lane's mark where walking from it costs more than a millisecond

and from time to time: make and drop partitions, prune helper tables.

After an outage nobody is reaped for a tenth of a lease: no supervisor could renew while the database was
away, and the reaper must not be faster than those that live.

Always true: a mark is published only as a low-water mark that was computed before. Losing the lock,
the connection or the process in the middle loses nothing: each tick is one transaction.

Worst delay of a job that nobody announced, in its lane's turn: 250 ms where it was stamped less than
250 ms before its commit; else two ticks and the workers' restart, that is 3 s at the default tick;
below the published mark, the full sweep's period besides. Where every worker is idle and no notification
came, the poll's period besides: a sweep brings jobs into view, it wakes nobody. Where there has been no work at all
for a while a tick is REST_S away instead of one: such a job waits for it in the worst case.

At rest somebody else's lease that lapses is reaped as soon as ever: when that may be is asked for.

Elsewhere: the statements (db/tend.py); what workers do with marks (worker/marks.py).
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import supervisor.db.tend as tend
from supervisor.db import queues
from supervisor.db.jobs import Connection, Lane, Mark, epoch_us, mark_at
from supervisor.db.link import DatabaseError, in_transaction
from supervisor.db.links import Caller
from supervisor.db.queues import QueueSettings
from supervisor.errors import DatabaseUnavailable
from supervisor.log import get_logger
from supervisor.metrics import OTHER, bounded_label, metrics
from supervisor.settings import Settings

RECENT_S: Final = 10.0
REST_S: Final = 60.0
_LAPSED_S: Final = 0.05
_SWEEP_S: Final = 2.0
_LOOKBACK_S: Final = 1.0
_DUTY: Final = 50
_PUBLISH_MS: Final = 1.0
_PARTITIONS_AHEAD: Final = 3
_LIMIT: Final = 1000
_LEAST_GRACE_S: Final = 1.0
_LONGEST_FULL_GAP_S: Final = 60.0

log = get_logger("tender")


@dataclass(slots=True)
class TickReport:
    """What one tick did; tended is False when another supervisor had the lock."""

    tended: bool = False
    reaped: list[str] = field(default_factory=list)
    moved: int = 0
    released: int = 0
    crashed: int = 0
    buried: int = 0
    charged: list[tuple[str, str]] = field(default_factory=list)
    """Queue and new status of each job that was charged a crash."""
    suspects_due: bool = False
    lanes: dict[Lane, Mark] = field(default_factory=dict)
    queues: list[QueueSettings] = field(default_factory=list)
    rested: bool = False
    """Whether it was asked when the next lease lapses."""
    lapse_s: float | None = None
    """Seconds until another supervisor's lease lapses unless it is renewed; None: there is none."""

    @property
    def next_in_s(self) -> float:
        """At rest: how long the next tick may take; 0 where it was not at rest."""
        if not self.rested:
            return 0.0
        return REST_S if self.lapse_s is None else min(REST_S, max(0.0, self.lapse_s) + _LAPSED_S)

    @property
    def found(self) -> bool:
        """Whether there was anything to do."""
        return bool(self.reaped or self.moved or self.released or self.crashed or self.suspects_due)


class Tender:
    """The housekeeping of one supervisor, whose id is *parent*."""

    def __init__(self, link: Caller, settings: Settings, parent: int, *, resting: Callable[[], bool]) -> None:
        self._link = link
        self._settings = settings
        self._parent = parent
        self._resting = resting
        self._schema = settings.schema_
        self._past: dict[Lane, deque[tuple[float, Mark]]] = {}
        self._next_discover = 0.0
        self._next_full = 0.0
        self._next_partitions = 0.0
        self._next_prune = 0.0
        self._away = False
        self._reap_from = 0.0

    async def tick(self) -> TickReport:
        """One round. Raises DatabaseUnavailable or psycopg.Error; the next tick starts afresh."""
        try:
            report = await self._link.call(lambda conn: in_transaction(conn, self._tend))
        except DatabaseUnavailable:
            self._away = True
            # What a full sweep had found may have been undone with it.
            self._next_full = min(self._next_full, time.monotonic() + RECENT_S)
            raise
        if report.reaped or report.crashed or report.buried:
            metrics().reaped.inc(report.crashed)
            for queue, status in report.charged:
                outcome = "crashed" if status == "queued" else status
                metrics().jobs.labels(bounded_label("queue", queue), OTHER, outcome).inc()
            log.warning(
                "lease.reaped",
                workers=report.reaped[:20],
                jobs_charged=report.crashed,
                jobs_dead=report.buried,
                reason="nobody renewed them in time: a supervisor or its machine was lost",
            )
        if report.moved or report.released:
            log.info("sweep.repaired", moved=report.moved, released=report.released)
        if report.tended:
            await self._retention()
        return report

    async def _tend(self, conn: Connection) -> TickReport:
        schema, now = self._schema, time.monotonic()
        report = TickReport(queues=await queues.settings_async(conn, schema))
        if self._resting():
            report.rested = True
            report.lapse_s = await tend.next_lapse(conn, schema, parent=self._parent)
        if not await tend.try_tend(conn, schema):
            report.lanes = await tend.lanes(conn, schema)
            return report
        report.tended = True
        if self._away:
            self._away = False
            self._reap_from = now + max(_LEAST_GRACE_S, self._settings.lease_s / 10)
        if now >= self._reap_from:
            report.reaped = [name for _, name in await tend.reap(conn, schema)]
        if report.reaped:
            self._next_full = 0.0
        if now >= self._next_discover:
            await tend.discover(conn, schema)
            self._next_discover = time.monotonic() + max(1.0, _DUTY * (time.monotonic() - now))
        report.lanes = await tend.lanes(conn, schema)
        waters = await tend.low_water(conn, schema, list(report.lanes.items()), lookback_s=_LOOKBACK_S)
        report.suspects_due = any(water.due for water in waters if water.lane.suspects)
        full = now >= self._next_full
        started = time.monotonic()
        if full:
            self._next_full = started + _LONGEST_FULL_GAP_S  # also when this one runs into its time limit
        ranges = [found for water in waters for found in self._ranges(water, now, full)]
        again = ranges
        while again:
            limit = max(10, _LIMIT // len(again))
            swept = await tend.sweep(
                conn,
                schema,
                again,
                base_s=self._settings.retry_base_s,
                cap_s=self._settings.retry_cap_s,
                limit=limit,
            )
            touched: dict[Lane, int] = {}
            for job in swept:
                touched[job.lane] = touched.get(job.lane, 0) + 1
                report.moved += job.what == "moved"
                report.released += job.what == "released"
                report.crashed += job.what == "crashed"
                report.buried += job.status == "dead"
                if job.what == "crashed":
                    report.charged.append((job.lane.queue, job.status))
            again = [item for item in again if touched.get(item.lane, 0) >= limit]
            if again and time.monotonic() > started + _SWEEP_S:
                break
        if again:
            # More than one transaction should hold: this much is kept, and the next tick goes on.
            self._next_full = 0.0
        elif full:
            took = time.monotonic() - started
            self._next_full = time.monotonic() + min(_LONGEST_FULL_GAP_S, max(1.0, _DUTY * took))
        ages = bool(self._settings.ageing_s) and any(water.due for water in waters)
        clock = await tend.now(conn, schema) if ages else 0.0
        for water in waters:
            published = report.lanes[water.lane]
            # Below what is published only if that lies ahead of the clock, which was set back.
            if water.mark < published or (
                water.mark > published and (water.cost_ms > _PUBLISH_MS or self._tells_age(water, published, clock))
            ):
                await tend.publish_mark(conn, schema, water.lane, water.mark)
                report.lanes[water.lane] = water.mark
        return report

    def _tells_age(self, water: tend.LowWater, published: Mark, clock: float) -> bool:
        """Whether workers are to know by the mark how old the lane's first job is (worker/marks.py): once it has
        waited for the ageing time, and then each tenth of that, so that a young lane does not pass for an old one."""
        ageing_s, mark_s = self._settings.ageing_s, epoch_us(water.mark.at) / 1e6
        aged = water.due and mark_s <= clock - ageing_s
        return (
            bool(ageing_s) and (aged or published > Mark()) and mark_s >= epoch_us(published.at) / 1e6 + ageing_s / 10
        )

    def _ranges(self, water: tend.LowWater, now: float, full: bool) -> list[tend.Range]:
        """What to sweep of one lane, and remember its mark for the next ticks.

        Nothing is ever moved ahead of the clock: after that was set back, marks of before lie in the future,
        and a job moved up to one would wait until the clock has caught up.
        """
        mark = water.mark
        past = self._past.setdefault(water.lane, deque())
        lo = Mark() if full or not past else min(was for _, was in past)
        past.append((now, mark))
        while len(past) > 1 and past[1][0] < now - RECENT_S:
            past.popleft()
        ranges = []
        if lo < mark:
            ranges.append(tend.Range(water.lane, lo, mark, _just_after(mark)))
        if full:
            # Above the mark nothing is out of sight, but a closed session may still hold jobs there: as far as those
            # that are parked at gates, which nobody can have claimed.
            ranges.append(tend.Range(water.lane, mark, Mark(tend.PARKED_AT, 0), None))
        return ranges

    async def _retention(self) -> None:
        now, schema, settings = time.monotonic(), self._schema, self._settings
        day = 86400.0
        if now >= self._next_partitions:
            self._next_partitions = now + 60
            if await self._partitions(settings.keep_history_days * day):
                self._next_partitions = now + 3600
        if now >= self._next_prune:
            gone = await self._link.call(
                lambda conn: tend.prune(
                    conn,
                    schema,
                    keep_history_s=settings.keep_history_days * day,
                    keep_dead_s=settings.keep_dead_days * day,
                    limit=_LIMIT,
                )
            )
            # A full batch means that there is more: go on at the next tick, not in one long loop.
            self._next_prune = now + (0 if gone >= _LIMIT else 60)

    async def _partitions(self, keep_s: float) -> bool:
        """Make and drop partitions of the history; False if a reader of it was in the way."""
        schema = self._schema
        await self._link.call(lambda conn: tend.make_partitions(conn, schema, days_ahead=_PARTITIONS_AHEAD))
        dropped: list[str] = []
        try:
            while found := await self._link.call(lambda conn: tend.drop_partitions(conn, schema, keep_s=keep_s)):
                dropped += found
        except DatabaseError as error:
            if error.sqlstate != "55P03":
                raise
            log.info("history.busy", did="left old partitions for now: something reads the history")
            return False
        finally:
            if dropped:
                log.info("history.dropped", partitions=dropped)
        return True


def _just_after(mark: Mark) -> str:
    """A microsecond above *mark*: the front of its lane, where every worker looks."""
    return mark_at(epoch_us(mark.at) + 1)
