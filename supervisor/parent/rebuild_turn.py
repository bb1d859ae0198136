"""One turn of the supervisor that leads: drops what is left of earlier rebuilds, rebuilds one index.

    may (server, role) --> nothing in the way --> begun is noted --> the statement, minded --> the end is noted
      '--> Refused           '--> Hindered                             '--> GaveWay

Always true: nothing is begun that would have to wait, as far as can be seen; what is noted goes over another connection
than the one that works, which may be gone by then.

Elsewhere: who leads, what is chosen, what is said (rebuild.py).
"""

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final, TypeVar

from supervisor.db import rebuild
from supervisor.db.health import Index
from supervisor.db.house import HouseConnection
from supervisor.db.link import DatabaseError, first_line
from supervisor.db.links import Caller
from supervisor.db.rebuild import Obstacle, Past
from supervisor.errors import DatabaseUnavailable
from supervisor.log import get_logger
from supervisor.metrics import metrics
from supervisor.parent.rebuild_when import hinders, next_wait, problem

T = TypeVar("T")
_BROUGHT: Final = 0.75  # of the size before: an index that is larger than this was not worth it

log = get_logger("rebuild")


@dataclass(frozen=True, slots=True)
class Limits:
    """How careful to be.

    Attributes:
        old_s: A transaction of that age is in the way.
        patience_s: How long a look waits until nothing is. step_s: between two such looks, and those for who waits.
        lock_s: The longest wait for one transaction. work_s: the longest rebuild; its table is not vacuumed meanwhile.
    """

    old_s: float = 30.0
    patience_s: float = 30.0
    step_s: float = 1.0
    lock_s: float = 30.0
    work_s: float = 300.0


class Refused(Exception):
    """This role or this server does not let it be done."""

    def __init__(self, reason: str, remedy: str, table: str) -> None:
        super().__init__(reason, remedy, table)
        self.reason, self.remedy, self.table = reason, remedy, table


class Hindered(Exception):
    """Something is in the way and stays."""

    def __init__(self, index: str, by: Obstacle) -> None:
        super().__init__(index, by)
        self.index, self.by = index, by


class GaveWay(Exception):
    """Somebody waited for the rebuild."""


class Turn:
    """What is done with *conn*, which leads; *link* is for all else."""

    def __init__(self, conn: HouseConnection, link: Caller, schema: str, limits: Limits) -> None:
        self.conn = conn
        self._link = link
        self._schema = schema
        self._limits = limits

    async def clear(self, index: Index) -> None:
        """Drop what a rebuild left behind: each insert writes it. Raises as `rebuild`."""
        await self._begin(index, drops=True)
        await self._minding(index, rebuild.drop(self.conn, self._schema, index.name))
        log.info("rebuild.cleared", index=index.name, bytes=index.bytes, reason="a rebuild that failed had left it")

    async def rebuild(self, index: Index, before: Past | None) -> None:
        """Rebuild *index*, whose last rebuild was *before*.

        Raises:
            Refused, Hindered: it was not begun.
            GaveWay, DatabaseUnavailable, psycopg.Error: it was not ended well; there may be something to clear.
        """
        await self._begin(index, drops=False)
        # Remembered first: whoever is killed in the middle has failed.
        again_s = next_wait(before, "failed")
        await self._note(index, "begun", again_s)
        log.info("rebuild.begun", index=index.name, bytes=index.bytes, unneeded_bytes=index.gain_bytes)
        began = time.monotonic()
        try:
            after = await self._minding(index, rebuild.reindex(self.conn, self._schema, index.name))
        except (DatabaseUnavailable, DatabaseError, GaveWay) as error:
            await self._note(index, "failed", again_s, reason=first_line(error))
            raise
        wait_s = next_wait(before, "vain" if after > _BROUGHT * index.bytes else "done")
        await self._note(index, "done", wait_s, after=after)
        metrics().rebuilds.labels("done").inc()
        log.info(
            "rebuild.done",
            index=index.name,
            bytes_before=index.bytes,
            bytes_after=after,
            took_s=round(time.monotonic() - began, 1),
            again_after_s=round(wait_s),
        )

    async def _begin(self, index: Index, *, drops: bool) -> None:
        """See that it may be done, and wait a while until nothing is in the way. Raises Refused or Hindered."""
        found = await rebuild.rights(self.conn, self._schema, index.table)
        if found is not None and (why := problem(found, index, self._schema, drops=drops)) is not None:
            raise Refused(*why, index.table)
        limits = self._limits
        until = time.monotonic() + limits.patience_s
        unknown: set[str] | None = None
        while True:
            obstacles = await rebuild.obstacles(self.conn, self._schema, index.table)
            if unknown is None:
                # Of what age they are cannot be seen: those that are still there later are not young.
                unknown = {one.key for one in obstacles if one.kind == "transaction" and one.age_s is None}
            there = next((one for one in obstacles if hinders(one, limits.old_s, unknown)), None)
            if there is None:
                return
            if time.monotonic() >= until:
                raise Hindered(index.name, there)
            await asyncio.sleep(limits.step_s)

    async def _minding(self, index: Index, work: Awaitable[T]) -> T:
        """Await *work* unless somebody waits for its locks: hang up then, and raise GaveWay."""
        pid = self.conn.info.backend_pid
        doing = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({doing}, timeout=self._limits.step_s))[0]:
                other = await self._link.call(lambda shared: rebuild.waiter(shared, self._schema, index.table, pid))
                if other is not None:
                    raise GaveWay(f"{other[0] or 'somebody'} (pid {other[1]}) waited for table {index.table}")
            return await doing
        finally:
            if not doing.done():
                doing.cancel()
                await asyncio.wait({doing})

    async def _note(
        self, index: Index, outcome: str, wait_s: float, *, after: int | None = None, reason: str | None = None
    ) -> None:
        await self._link.call(
            lambda conn: rebuild.note(
                conn,
                self._schema,
                index.name,
                outcome,
                wait_s=wait_s,
                before=index.bytes,
                after=after,
                reason=reason,
            )
        )
