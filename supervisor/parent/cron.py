"""Fires the entries of cron: one job per tick, however many supervisors look.

    a worker says which kinds and entries it has --> declare, again with each renewal
    each second, and when the next tick is due   --> look --> plan what has no next tick --> fire what is due

Every supervisor does this, whatever handlers it has. A firing is one statement with the row's lock taken or
skipped, so there is no leader to lose: one that is frozen or cut off holds nothing up.

Always true: whether something is due is decided by the database's clock; this host's says only how long to
sleep. Nothing of an entry but its row is relied on: it may be paused, edited or retired at any moment. One that no
living supervisor defines is left alone: after all were away, a removed handler's entry is retired before it is due.

Elsewhere: ticks (supervisor/cron.py); what the statements promise (db/functions/085_cron.sql).
"""

import asyncio
import time
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final

from supervisor.cron import Entry, Timetable
from supervisor.db import schedules
from supervisor.db.links import Caller
from supervisor.db.schedules import Open
from supervisor.errors import InvalidSchedule
from supervisor.log import Repeats, get_logger
from supervisor.metrics import bounded_label, metrics
from supervisor.parent.guard import Guard
from supervisor.parent.rest import Rest
from supervisor.settings import Settings

_LOOK_S: Final = 1.0
_LOOK_WITHOUT_ENTRIES_S: Final = 5.0
_LOOK_AT_REST_S: Final = 30.0
_LEAST_S: Final = 0.002
_AGAIN_S: Final = 0.02
_TELL_AGAIN_S: Final = 600.0

log = get_logger("cron")


class Cron:
    """The firing of one supervisor."""

    def __init__(self, link: Caller, settings: Settings, *, guard: Guard, rest: Rest) -> None:
        self._link = link
        self._schema = settings.schema_
        self._renew_s = settings.renew_every_s
        self._ttl_s = max(settings.lease_s, 3 * settings.renew_every_s)
        self._guard = guard
        self._rest = rest
        self._kinds: tuple[str, ...] = ()
        self._entries: tuple[Entry, ...] = ()
        self._declare_at = 0.0
        self._now = asyncio.Event()
        self._wait_s = _LOOK_WITHOUT_ENTRIES_S
        self._any = self._without_entries = False
        self._repeats = Repeats(_TELL_AGAIN_S)

    def declare(self, kinds: Sequence[str], entries: Sequence[Entry]) -> None:
        """This is what the workers run."""
        if (self._kinds, self._entries) != (tuple(kinds), tuple(entries)):
            self._kinds, self._entries = tuple(kinds), tuple(entries)
            self._declare_at = 0.0
            self._now.set()

    def forget(self) -> None:
        """The workers take no more jobs: say nothing of their entries any more."""
        self._kinds, self._entries = (), ()

    async def run(self) -> None:
        """Look and fire until cancelled."""
        while True:
            self._wait_s, self._without_entries = _LOOK_S, False
            await self._guard.run(self._turn, "cron")
            await self._rest.wait(self._now, self._wait_s, _LOOK_AT_REST_S if self._without_entries else 0.0)
            self._now.clear()

    async def _turn(self) -> None:
        if self._kinds and (self._entries or self._any) and time.monotonic() >= self._declare_at:
            await self._declare()
        found = await self._link.call(lambda conn: schedules.open_entries(conn, self._schema))
        self._any = bool(found)
        self._without_entries = not (found or self._entries)
        self._wait_s = _LOOK_WITHOUT_ENTRIES_S if self._without_entries else _LOOK_S
        for entry in found:
            if not entry.defined:
                continue  # its handler may be gone: whoever has it says so before it is fired
            if entry.next_at is None:
                await self._guard.run(partial(self._plan, entry), "cron")
            elif entry.next_at <= entry.now:
                await self._guard.run(partial(self._fire, entry), "cron")
            else:
                self._look_in((entry.next_at - entry.now).total_seconds())

    def _look_in(self, seconds: float) -> None:
        self._wait_s = max(_LEAST_S, min(self._wait_s, seconds))

    async def _declare(self) -> None:
        changed = await self._link.call(
            lambda conn: schedules.declare(conn, self._schema, self._kinds, self._entries, ttl_s=self._ttl_s)
        )
        if changed is not None:
            self._declare_at = time.monotonic() + self._renew_s
        if changed:
            log.info("schedules.changed", names=changed[:20], entries=len(changed))

    async def _plan(self, entry: Open) -> None:
        try:
            next_at = _timetable(entry.cron, entry.tz).after(entry.now)
        except InvalidSchedule as error:
            await self._broken(entry, f"{error.field}: {error.reason}")
            return
        if next_at is None:
            await self._broken(entry, "cron: never comes true within fifty years")
            return
        await self._link.call(lambda conn: schedules.plan(conn, self._schema, entry, next_at))
        self._look_in(_LEAST_S)

    async def _fire(self, entry: Open) -> None:
        assert entry.next_at is not None
        try:
            table = _timetable(entry.cron, entry.tz)
            # Thousands of ticks may have been missed: not on the loop.
            due = await asyncio.to_thread(table.due, entry.next_at, entry.now, entry.missed)
        except InvalidSchedule as error:
            await self._broken(entry, f"{error.field}: {error.reason}")
            return
        fired = await self._link.call(lambda conn: schedules.fire(conn, self._schema, entry, due))
        self._look_in(_AGAIN_S)
        if fired is None:
            return  # another supervisor has, or does
        kind, numbers = bounded_label("kind", entry.kind), metrics()
        if due.fire:
            numbers.schedule_fired.labels(kind).inc(len(due.fire))
            numbers.schedule_late_seconds.observe(max(0.0, fired.late_s))
        if due.skipped:
            numbers.schedule_skipped.labels(kind).inc(due.skipped)
            log.warning(
                "schedule.skipped",
                name=entry.name,
                ticks=due.skipped if due.exact else f"{due.skipped} or more",
                first=entry.next_at.isoformat(),
                fired=len(due.fire),
                reason="nobody fired them in time: no supervisor ran, or the database was away",
                remedy="to have more of them fired, raise missed",
            )

    async def _broken(self, entry: Open, problem: str) -> None:
        if self._repeats.allow(f"{entry.name} {problem}") is not None:
            log.error(
                "schedule.broken",
                name=entry.name,
                reason=problem,
                did="left it unfired",
                remedy="supervisor schedules set, or install the zone's data",
            )
        await self._link.call(lambda conn: schedules.plan(conn, self._schema, entry, None, problem))


@lru_cache(1000)
def _timetable(cron: str, zone: str) -> Timetable:
    return Timetable(cron, zone)
