"""Rebuilds indexes of the queue's tables that have grown far beyond what their rows need, while everything runs.

    every six times SUPERVISOR_WATCH_EVERY_S, each supervisor by itself:

    look (sizes, statistics) --nothing to do--> the next look
      '--> a connection of its own, one in the cluster leads (the others: the next look)
             '--> drop what an earlier rebuild left --> wait until nothing is in the way --> reindex concurrently
                    nothing more than one index a look                  '--> not for half a minute: the next look

A concurrent rebuild reads beside all claims and blocks none of them, but waits: for writers of the table, for every
older snapshot of the database, for readers of the table. Meanwhile the table is not vacuumed. So it is not begun while
there is a transaction of that kind that is not young, each wait has a limit, and so has the whole; whoever then wants a
lock that it excludes (a migration, a vacuum by hand) gets it within a second or two: the rebuild gives way.

What an index brought is remembered in the table rebuild, for all supervisors to come: one that failed, that came out
as large, or that was bloated again at once has to wait twice as long as before.

Always true: the drain does not wait for a rebuild, which is hung up when it begins; at most one runs in the cluster;
only indexes of our own tables, and only leftovers named after one of them, are touched.

Elsewhere: what is done with that connection (rebuild_turn.py); when an index may be tried (rebuild_when.py); the
statements (db/rebuild.py); how the waste is estimated (db/sql/health_indexes.sql).
"""

import asyncio
import random
import time
from typing import Final

from supervisor.db import rebuild
from supervisor.db.health import Index
from supervisor.db.house import HouseConnection
from supervisor.db.link import DatabaseError, first_line
from supervisor.db.links import Caller
from supervisor.db.rebuild import Past
from supervisor.errors import DatabaseUnavailable
from supervisor.log import Repeats, get_logger
from supervisor.metrics import metrics
from supervisor.parent.guard import Guard
from supervisor.parent.rebuild_turn import GaveWay, Hindered, Limits, Refused, Turn
from supervisor.parent.rest import Rest
from supervisor.settings import Settings

EVERY: Final = 6
"""Looks, in intervals of the watch: statistics of tables are read that often."""
_AT_REST: Final = 2.5
_SHARE: Final = 0.5
_REFUSED_S: Final = 3600.0
_TELL_AGAIN_S: Final = 24 * 3600.0
_TELL_WAIT_S: Final = 3600.0
_BY_HAND: Final = "SUPERVISOR_REBUILD_INDEXES_MB=0 ends these tries"
_REMEDIES: Final = {
    "55P03": "see what transactions stay open (supervisor doctor)",
    "57014": "rebuild it by hand where it takes longer than the limit, or find who cancelled it",
    "53100": "the disk is full: a rebuild needs room for a second index",
}

log = get_logger("rebuild")


class Rebuilder:
    """The looks of one supervisor.

    Args:
        address: leads to the database; SUPERVISOR_LISTEN_DATABASE_URL goes before it.
    """

    def __init__(
        self,
        link: Caller,
        settings: Settings,
        address: str,
        *,
        guard: Guard,
        rest: Rest,
        limits: Limits | None = None,
    ) -> None:
        self._link = link
        self._schema = settings.schema_
        direct = settings.listen_database_url
        self._address = direct.get_secret_value() if direct else address
        self._connect_timeout_s = settings.connect_timeout_s
        self._least_bytes = settings.rebuild_indexes_mb * 2**20
        self._every_s = settings.watch_every_s * EVERY
        self._guard = guard
        self._rest = rest
        self._limits = limits or Limits()
        self._soon = asyncio.Event()
        self._stopped = False
        self._looking: asyncio.Task[bool] | None = None
        self._refused: dict[str | None, float] = {}  # table -> until when it is not tried; None: all
        self._refusals = Repeats(_TELL_AGAIN_S)
        self._waits = Repeats(_TELL_WAIT_S)
        for outcome in ("done", "failed", "gave_way"):
            metrics().rebuilds.labels(outcome)  # so that the first one is seen as one more

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self._soon.clear()
            await self._rest.wait(self._soon, self._every_s * random.uniform(0.9, 1.1), self._every_s * _AT_REST)
            if not self._least_bytes or self._stopped:
                continue
            self._looking = asyncio.get_running_loop().create_task(self._guard.run(self.look, "rebuild"))
            try:
                await self._looking
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise  # else it was stop() that ended the look alone

    def stop(self) -> None:
        """Hang up on a rebuild that runs, and begin none any more."""
        self._stopped = True
        if self._looking is not None:
            self._looking.cancel()

    async def look(self) -> None:
        """One look, and what it asks for. Raises DatabaseUnavailable or DatabaseError of the shared connection."""
        left, chosen = await self._link.call(self._wanted)
        if not left and chosen is None:
            return
        limits = self._limits
        try:
            async with rebuild.opened(
                self._address,
                self._schema,
                connect_timeout_s=self._connect_timeout_s,
                lock_s=limits.lock_s,
                work_s=limits.work_s,
            ) as conn:
                if conn is not None:
                    await self._lead(Turn(conn, self._link, self._schema, limits))
        except rebuild.Pooled:
            self._refuse(
                "the database's address leads through a transaction pooler, where a rebuild's limits would be lost",
                "set SUPERVISOR_LISTEN_DATABASE_URL to a direct address",
                None,
            )
        except Refused as refused:
            self._refuse(refused.reason, refused.remedy, refused.table)
        except Hindered as hindered:
            self._tell_of(hindered)
        except GaveWay as way:
            metrics().rebuilds.labels("gave_way").inc()
            log.info("rebuild.gave_way", reason=str(way), did="ended it; it is tried again later")
        except (DatabaseUnavailable, DatabaseError) as error:
            metrics().rebuilds.labels("failed").inc()
            code = error.sqlstate if isinstance(error, DatabaseError) else None
            log.warning(
                "rebuild.failed",
                reason=first_line(error),
                did="left it for later; what it left behind is dropped first",
                remedy=_REMEDIES.get(code or "", "none where it passes by itself"),
            )

    async def _wanted(self, conn: HouseConnection) -> tuple[list[tuple[Index, str]], tuple[Index, Past | None] | None]:
        """What was left behind, and the index to rebuild: of those that may be tried the one that wastes most."""
        found = await rebuild.state(conn, self._schema)
        left = [(index, of) for index, of in found.left if self._may_try(index.table)]
        fat = [
            index
            for index in found.indexes
            if self._may_try(index.table)
            and index.bytes >= self._least_bytes
            and (index.gain_bytes or 0) > _SHARE * index.bytes
        ]
        if not fat:
            return left, None
        past = await rebuild.past(conn, self._schema)
        ready = [index for index in fat if index.name not in past or past[index.name].next_s <= 0]
        chosen = max(ready, key=lambda index: index.gain_bytes or 0, default=None)
        return left, None if chosen is None else (chosen, past.get(chosen.name))

    async def _lead(self, turn: Turn) -> None:
        left, chosen = await self._wanted(turn.conn)  # again: another one may have led until now
        for index, _ in left:
            await turn.clear(index)
        if chosen is not None:
            await turn.rebuild(*chosen)

    def _refuse(self, reason: str, remedy: str, table: str | None) -> None:
        self._refused[table] = time.monotonic() + _REFUSED_S
        if self._refusals.allow(reason) is not None:
            log.warning(
                "rebuild.refused",
                reason=reason,
                did="left bloated indexes as they are",
                remedy=f"{remedy}; {_BY_HAND}",
            )

    def _may_try(self, table: str) -> bool:
        now = time.monotonic()
        return all(self._refused.get(key, now) <= now for key in (table, None))

    def _tell_of(self, hindered: Hindered) -> None:
        there = hindered.by
        self._waits.tell(
            log.info,
            "rebuild.waits",
            index=hindered.index,
            kind=there.kind,
            name=there.name,
            pid=there.pid,
            age_s=None if there.age_s is None else round(there.age_s),
            reason="a rebuild would wait for it",
            remedy="none where it passes; who stays is named by supervisor doctor too",
        )
