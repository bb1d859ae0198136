"""Renews the leases of living workers, and fences them when it cannot.

One statement renews the sessions of all this parent's workers, three times per lease. So a handler that
blocks its loop or holds the interpreter keeps its lease as long as its process exists.

    renewed                     lease_until on each board moves on
    one session is closed       its worker finds out by itself at its next statement; it is told to stop
    cannot renew                at 70% of the lease: workers interrupt what runs (SUPERVISOR_FENCE)
                                at 90%: what still runs is killed, before the lease passes to others
    the process itself was stopped (SIGSTOP, a suspended machine): one renewal is tried before that

Always true: a board's lease_until is never later than the lease in the database: it counts from before
the statement was sent.

Elsewhere: reaping what others failed to renew (tender.py).
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from supervisor.db import jobs
from supervisor.db.link import DatabaseError, first_line
from supervisor.db.links import Caller
from supervisor.errors import DatabaseUnavailable
from supervisor.log import Repeats, get_logger
from supervisor.metrics import metrics
from supervisor.settings import Settings

_FENCE_AT: Final = 0.7
_KILL_AT: Final = 0.9
_LATE: Final = 0.2  # of a lease: a loop that has not turned for so long was stopped, not busy
_STEP: Final = 0.05

log = get_logger("leases")


class Holder(Protocol):
    """A worker with leases."""

    @property
    def busy(self) -> bool:
        """Whether it runs jobs now."""

    def sessions(self) -> list[int]: ...
    def renewed(self, until: float) -> None: ...
    def stop_now(self, reason: str) -> None: ...
    def kill(self, reason: str) -> None: ...


class Leases:
    """The renewing of all workers' sessions.

    Args:
        holders: the workers whose processes exist.
        on_closed: called with a worker whose session is closed for good.
        on_fenced: called with true when running jobs are stopped for want of a renewal, with false after the next.
    """

    def __init__(
        self,
        link: Caller,
        settings: Settings,
        *,
        holders: Callable[[], Iterable[Holder]],
        on_closed: Callable[[Holder, int], None],
        on_fenced: Callable[[bool], None],
    ) -> None:
        self._link = link
        self._settings = settings
        self._holders = holders
        self._on_closed = on_closed
        self._on_fenced = on_fenced
        self._repeats = Repeats()
        self.renewed_at = time.monotonic()
        """When the last renewal that succeeded was sent (monotonic)."""
        self._fenced = False
        self._turned_at = time.monotonic()
        self._resumed_at = 0.0

    async def run(self) -> None:
        """Renew until cancelled."""
        every = self._settings.renew_every_s
        while True:
            ok = await self.renew()
            await self._sleep(every if ok else min(every, max(0.02, every / 10)))

    async def _sleep(self, seconds: float) -> None:
        """Sleep in small steps, so as to notice that this process was stopped meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _STEP * self._settings.lease_s))
            self._notice()

    def _notice(self) -> None:
        """This loop turns; if it has not for long, the process was stopped and its deadlines mean nothing."""
        now = time.monotonic()
        if now - self._turned_at > _LATE * self._settings.lease_s:
            self._resumed_at = now
        self._turned_at = now

    async def _sleep_until_share(self, share: float) -> None:
        """Sleep until *share* of the lease has passed; after a stop, until a renewal had time to be answered."""
        lease_s = self._settings.lease_s
        while True:
            self._notice()
            due = max(self.renewed_at + share * lease_s, self._resumed_at + _LATE * lease_s)
            left = due - time.monotonic()
            if left <= 0:
                return
            await self._sleep(left)

    async def renew(self) -> bool:
        """Renew once; whether the database answered."""
        holders = {session: holder for holder in self._holders() for session in holder.sessions()}
        sent = time.monotonic()
        if holders:
            lease_s = self._settings.lease_s
            fence = asyncio.get_running_loop().create_task(self._fence_in_time(list(holders.values())))
            try:
                alive = await self._link.call(
                    lambda conn: jobs.renew(conn, self._settings.schema_, sessions=list(holders), lease_s=lease_s)
                )
            except (DatabaseUnavailable, DatabaseError) as error:
                self._notice()
                metrics().errors.labels("renew").inc()
                self._repeats.tell(
                    log.warning,
                    "lease.renewal_failed",
                    reason=first_line(error),
                    lease_left_s=round(self.renewed_at + lease_s - time.monotonic(), 1),
                )
                return False
            finally:
                fence.cancel()
            for session, holder in holders.items():
                if session in alive:
                    holder.renewed(sent + lease_s)
                else:
                    self._on_closed(holder, session)
        self.renewed_at = sent
        if self._fenced:
            self._fenced = False
            self._on_fenced(False)
        return True

    async def _fence_in_time(self, holders: list[Holder]) -> None:
        """While a renewal is under way or failing: act before the lease can pass elsewhere."""
        if not self._settings.fence:
            return
        lease_s = self._settings.lease_s
        await self._sleep_until_share(_FENCE_AT)
        if not self._fenced:
            self._fenced = True
            self._on_fenced(True)
            log.error(
                "lease.fencing",
                seconds_without_renewal=round(time.monotonic() - self.renewed_at, 1),
                lease_s=lease_s,
                did="interrupting running jobs before their leases pass to others; they are queued again, uncharged",
                remedy="see why the database does not answer; raise SUPERVISOR_LEASE_S to ride out longer outages",
            )
            for holder in holders:
                if holder.busy:
                    holder.stop_now("fence")
        await self._sleep_until_share(_KILL_AT)
        for holder in holders:
            if holder.busy:
                holder.kill("fence")
