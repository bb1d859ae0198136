"""Putting back what dead workers held: what recover.py decides is stored, counted and told.

    board, death --judge--> settlements --one transaction--> jobs moved, its sessions closed
                                 ^              |
                                 '-- database away: again, ever later, for as long as it takes
                                                |
                            counted: runs that are stored and that the worker has not counted itself
                            told:    jobs that are due again, suspects, a line in the log

Always true: recoveries run beside the service and hold nothing up: the dead worker's slot is filled meanwhile. Its
board stays until its recovery has ended.

Elsewhere: the rule (recover.py); that a worker is gone, and why (fleet.py).
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from supervisor.db import jobs
from supervisor.db.jobs import Connection, Settled, Settlement
from supervisor.db.link import DatabaseError, first_line, in_transaction
from supervisor.db.links import Caller
from supervisor.errors import DatabaseUnavailable
from supervisor.log import Repeats, get_logger
from supervisor.metrics import bounded_label, metrics, totals
from supervisor.parent.child import Child
from supervisor.parent.recover import Death, culprit, judge, uncounted
from supervisor.settings import Settings
from supervisor.wire.board import Snapshot
from supervisor.worker.results import keep_level

_NAMED: Final = 20  # jobs named in one log line
_PAUSE_S: Final = (0.05, 2.0)

log = get_logger("fleet")


class Recovery:
    """The recoveries of one parent's workers.

    Args:
        on_due: called with the seconds until a recovered job is due again.
        on_suspects: called with the seconds until a job that may have killed its worker is due again.
        on_recovered: called when a dead worker's session has ended. A claim that was under way when it died has
            leased jobs that are on no board: only a sweep finds them.
    """

    def __init__(
        self,
        link: Caller,
        settings: Settings,
        *,
        metrics_dir: Path,
        on_due: Callable[[float], None],
        on_suspects: Callable[[float], None],
        on_recovered: Callable[[], None],
    ) -> None:
        self._link = link
        self._settings = settings
        self._metrics_dir = metrics_dir
        self._on_due = on_due
        self._on_suspects = on_suspects
        self._on_recovered = on_recovered
        self._under_way = 0
        self._done = asyncio.Event()
        self._done.set()
        self._repeats = Repeats()

    def counted_by(self, slot: int) -> float:
        """Runs that workers of this slot have counted in its files."""
        return sum(totals(self._metrics_dir, "supervisor_jobs_total", "outcome", slot=f"w{slot}").values())

    async def wait(self, timeout_s: float) -> bool:
        """Wait for recoveries to end; whether they did."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._done.wait()
        except TimeoutError:
            return False
        return True

    async def run(self, child: Child, board: Snapshot, death: Death) -> None:
        """Put back what a dead worker held, until the database has taken it."""
        self._under_way += 1
        self._done.clear()
        started = time.monotonic()
        settings = self._settings
        settlements = judge(board, death, base_s=settings.retry_base_s, cap_s=settings.retry_cap_s)
        try:
            moved, live = await self._store(child.slot, board, settlements)
            self._on_recovered()
            self._count(child, board, settlements, moved, live)
            self._announce(board, settlements, moved)
            if settlements:
                log.warning(
                    "worker.recovered",
                    slot=child.slot,
                    pid=child.pid,
                    jobs=len(settlements),
                    job_ids=[verdict.id for verdict in settlements[:_NAMED]],
                    applied=len(moved),
                    charged_job=culprit(settlements),
                    took_ms=round((time.monotonic() - started) * 1000, 1),
                    **Counter(verdict.outcome.event for verdict in settlements),
                )
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._done.set()
            child.close()

    async def _store(self, slot: int, board: Snapshot, settlements: list[Settlement]) -> tuple[list[Settled], bool]:
        """The jobs that were moved, and whether the worker's session still held its leases."""
        settings = self._settings
        sessions = [session for session in (board.session, board.next_session) if session]

        async def apply(conn: Connection) -> tuple[list[Settled], bool]:
            moved = []
            # Locks them against the reaper too: it charges crashes, and we know better.
            live = await jobs.renew(conn, settings.schema_, sessions=sessions, lease_s=settings.lease_s)
            for session in sessions:
                if settlements:
                    moved += await jobs.settle(
                        conn,
                        settings.schema_,
                        session=session,
                        settlements=settlements,
                        keep=keep_level(settings),
                        unknown_limit_s=settings.unknown_kind_limit_s,
                    )
                await jobs.close_session(conn, settings.schema_, session=session)
            return moved, bool(live)

        pause, longest = _PAUSE_S
        while True:
            try:
                return await self._link.call(lambda conn: in_transaction(conn, apply))
            except (DatabaseUnavailable, DatabaseError) as error:
                self._repeats.tell(log.warning, "recovery.delayed", slot=slot, reason=first_line(error))
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(longest, pause * 2)

    def _count(
        self, child: Child, board: Snapshot, settlements: list[Settlement], moved: list[Settled], live: bool
    ) -> None:
        """Count the runs that are stored and that the dead worker has not counted itself."""
        numbers = metrics()
        begun = self.counted_by(child.slot) - child.counted_before - board.counted
        became = {item.id: item.status for item in moved}
        ended, released = uncounted(board, settlements, became, live=live, begun=round(begun))
        for entry, outcome in ended:
            kind = bounded_label("kind", entry.kind)
            numbers.jobs.labels(child.queue_named(entry.queue), kind, outcome).inc()
        for entry in released:
            numbers.released.labels(child.queue_named(entry.queue), entry.reason or "neighbour_died").inc()
        if settlements and not live:
            # Others took the session for dead before we could say what became of these.
            numbers.leases_lost.inc(len(settlements) - len(moved))

    def _announce(self, board: Snapshot, settlements: list[Settlement], moved: list[Settled]) -> None:
        """Say when jobs that went back to their queues are due."""
        told = {verdict.id: verdict.outcome.event for verdict in settlements}
        suspects = {entry.job_id for entry in board.entries if entry.suspect}
        for item in moved:
            if item.due_in_s is not None and item.due_in_s > 0:
                self._on_due(item.due_in_s)
            if item.status == "queued" and (item.id in suspects or told[item.id] == "suspect"):
                self._on_suspects(max(0.0, item.due_in_s or 0.0))
