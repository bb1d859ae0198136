"""Vacuums the tables of a busy queue more often than the server's own autovacuum comes round.

    look --rows have died--> vacuum --they are gone--> look again in LOOK_S
                                    --most are still there--> an old snapshot holds them: in twice that, up to LONGEST_S

Autovacuum looks once a minute by the server's default. At 50,000 jobs a second three million rows have died by then,
and the table and its indexes have room for all of them, for good. A vacuum each ten seconds takes a fifth of a second
there and keeps them at a tenth of that (`bench sustained`).

Always true: the connection is closed when a vacuum is done. Who may not vacuum says so, and leaves it to the server.
At rest nothing is asked. Two supervisors at once do no harm: the second one's vacuum does nothing.

Elsewhere: the statements (db/vacuum.py); rebuilding indexes, which a vacuum does not make smaller (rebuild.py); what
people are told of dead rows (watch.py, doctor/checks/vacuum.py).
"""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Final

import supervisor.db.vacuum as tables
from supervisor.db.link import Link
from supervisor.db.links import Caller
from supervisor.db.vacuum import Worn
from supervisor.log import Repeats, get_logger
from supervisor.metrics import metrics
from supervisor.parent.guard import Guard
from supervisor.parent.rest import Rest
from supervisor.settings import Settings

LOOK_S: Final = 10.0
LONGEST_S: Final = 600.0
TIMEOUT_S: Final = 3600.0
_AT_REST_S: Final = 86_400.0
_SHARE: Final = 0.1  # of a long backlog's rows: reading all of its index for a few dead ones does not pay
_TELL_AGAIN_S: Final = 3600.0

log = get_logger("vacuum")


class Vacuum:
    """One supervisor's.

    Args:
        link: for the looks.
        own: makes the connection of a vacuum, which may take its time.
    """

    def __init__(
        self,
        link: Caller,
        own: Callable[[], Link],
        settings: Settings,
        *,
        guard: Guard,
        rest: Rest,
    ) -> None:
        self._link = link
        self._own = own
        self._schema = settings.schema_
        self._dead_rows = settings.vacuum_rows
        self._guard = guard
        self._rest = rest
        self._awake = asyncio.Event()
        self._repeats = Repeats(_TELL_AGAIN_S)
        self.pause_s = LOOK_S
        """Until the next look."""
        for outcome in ("done", "in_vain"):
            metrics().vacuums.labels(outcome)  # so that the first one is seen as one more

    async def run(self) -> None:
        """Look until cancelled; where this is left to the server, do nothing."""
        while self._dead_rows:
            self._awake.clear()
            await self._rest.wait(self._awake, self.pause_s * random.uniform(0.9, 1.1), _AT_REST_S)
            await self._guard.run(self.look, "vacuum")

    async def look(self) -> None:
        """Vacuum what needs it."""
        brought: list[bool] = []
        for found in await self._worn():
            if not found.allowed:
                self._repeats.tell(
                    log.warning,
                    "vacuum.refused",
                    table=found.table,
                    dead_rows=found.dead,
                    did="left it to the server's autovacuum",
                    remedy="grant maintain on the table to this role (PostgreSQL 17 and later: `supervisor migrate "
                    "--roles`), or run as its owner; else autovacuum_naptime = 10s",
                )
                continue
            helped = await self._vacuum(found)
            if helped is not None:
                brought.append(helped)
        self.pause_s = min(LONGEST_S, self.pause_s * 2) if brought and not any(brought) else LOOK_S

    async def _worn(self) -> list[Worn]:
        return await self._link.call(
            lambda conn: tables.worn(conn, self._schema, dead_rows=self._dead_rows, share=_SHARE)
        )

    async def _vacuum(self, found: Worn) -> bool | None:
        """Vacuum one table; whether most of its dead rows went, None if somebody else is at it."""
        own, began = self._own(), time.monotonic()
        try:
            if not await own.call(lambda conn: tables.vacuum(conn, self._schema, found.table)):
                return None
        finally:
            await own.close()
        took_s = round(time.monotonic() - began, 2)
        left = next((one.dead for one in await self._worn() if one.table == found.table), 0)
        helped = left < found.dead / 2
        metrics().vacuums.labels("done" if helped else "in_vain").inc()
        if helped:
            log.debug("vacuum.done", table=found.table, dead_rows=found.dead, left=left, took_s=took_s)
        else:
            self._repeats.tell(
                log.warning,
                "vacuum.in_vain",
                table=found.table,
                dead_rows=found.dead,
                left=left,
                took_s=took_s,
                reason="something keeps rows that have died alive: an old transaction, a replication slot, a standby",
                remedy="`supervisor doctor` names it (check horizon)",
            )
        return helped
