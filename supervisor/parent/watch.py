"""Reads the figures of the queues and their tables for /metrics, and writes the tally: on a timer.

    every SUPERVISOR_WATCH_EVERY_S        depths and ages of the queues; the tally
    six times less often                  sizes, dead rows, bloat, snapshots, slots; what waits at gates

At rest (rest.py) 2.5 times less often. A scrape never comes here. Figures are shown for three intervals; when
the database does not answer they are left off the page, and the age of the last refresh goes on growing.

Always true: a slow look can delay neither a renewal nor a poll.

Elsewhere: the figures (db/health.py); how they are shown (gauges.py, metrics/facts.py).
"""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Final

from supervisor.db import events, gates, health, queues, schedules
from supervisor.db.link import DatabaseError, first_line
from supervisor.db.links import Caller
from supervisor.errors import DatabaseUnavailable
from supervisor.log import Repeats, get_logger
from supervisor.metrics import Facts
from supervisor.metrics.facts import Values
from supervisor.outbox.figures import of_outbox
from supervisor.parent.gauges import of_gates, of_queues, of_schedules, of_settings, of_tables
from supervisor.parent.guard import Guard
from supervisor.parent.rest import Rest
from supervisor.parent.tally import Tally
from supervisor.settings import Settings

_TABLES_EVERY: Final = 6
_GOOD_FOR: Final = 3
_AT_REST: Final = 2.5
_SLACK_S: Final = 1.0
_OLD_S: Final = 600.0  # a snapshot of that age is worth a line of the log
_TELL_AGAIN_S: Final = 600.0
_LAST_WRITE_S: Final = 2.0

log = get_logger("watch")


class Watch:
    """The looking. *listed*: whether there is a page to show figures on; the tally is written in any case."""

    def __init__(
        self,
        link: Caller,
        settings: Settings,
        *,
        guard: Guard,
        facts: Facts,
        tally: Tally,
        listed: bool,
        rest: Rest,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._schema = settings.schema_
        self._every = settings.watch_every_s
        self._guard = guard
        self._facts = facts
        self._tally = tally
        self._listed = listed
        self._rest = rest
        self._now_awake = asyncio.Event()
        self._now = now
        self._read_at = {"queues": now(), "tables": now()}
        self._tables_due = 0.0
        self._repeats = Repeats(_TELL_AGAIN_S)
        facts.ask(self._ages)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.to_thread(self._tally.take)
            await self._guard.run(self._tally.write, "tally")
            if self._listed:
                await self._guard.run(self._queues, "watch")
                if self._now() >= self._tables_due:
                    await self._guard.run(self._tables, "watch")
            self._now_awake.clear()
            await self._rest.wait(self._now_awake, self._every * random.uniform(0.9, 1.1), self._every * _AT_REST)

    async def finish(self) -> None:
        """The service ends: write what is counted, if the database takes it at once."""
        self._tally.take()
        try:
            async with asyncio.timeout(_LAST_WRITE_S):
                await self._tally.write()
        except (DatabaseUnavailable, DatabaseError, TimeoutError) as error:
            log.warning("tally.unwritten", reason=first_line(error), did="left the last counts out of the table tally")

    async def _queues(self) -> None:
        found = await self._link.call(lambda conn: health.depths(conn, self._schema))
        settings = await self._link.call(lambda conn: queues.settings_async(conn, self._schema))
        outbox = await self._link.call(lambda conn: events.state_async(conn, self._schema))
        entries = await self._link.call(lambda conn: schedules.listed_async(conn, self._schema))
        values = {**of_queues(found), **of_settings(settings, found), **of_outbox(outbox), **of_schedules(entries)}
        self._put("queues", values, self._every)

    async def _tables(self) -> None:
        found = await self._link.call(lambda conn: health.table_health(conn, self._schema))
        waiting = await self._link.call(lambda conn: gates.waiting_async(conn, self._schema))
        self._put("tables", {**of_tables(found), **of_gates(waiting)}, self._every * _TABLES_EVERY)
        self._tables_due = self._now() + self._every * (_TABLES_EVERY - 0.5)
        oldest = found.oldest
        if oldest is not None and (oldest.age_s or 0.0) > _OLD_S:
            self._repeats.tell(
                log.warning,
                "snapshot.old",
                age_s=round(oldest.age_s or 0.0),
                kind=str(oldest.kind),
                name=oldest.name,
                pid=oldest.pid,
                user=oldest.user,
                state=oldest.state,
                reason="dead rows cannot be removed while it lives, in no table of this database",
                remedy="see what it does; end it with pg_terminate_backend, or ROLLBACK PREPARED",
            )

    def _put(self, figures: str, values: Values, every_s: float) -> None:
        self._read_at[figures] = self._now()
        self._facts.put(figures, values, good_for_s=_GOOD_FOR * every_s + _SLACK_S)

    def _ages(self) -> Values:
        if not self._listed:
            return {}
        return {"refresh_age_seconds": {(figures,): self._now() - at for figures, at in self._read_at.items()}}
