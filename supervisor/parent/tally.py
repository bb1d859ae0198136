"""Adds what this service's workers have counted to the table `tally`, by minute: what throughput lines show.

    take    every few seconds: what the counters have grown by since the last time, under the minute it is
    write   adds it in one transaction; what the database did not take is kept and added later

Always true: nothing is added twice. Where the answer to a commit was lost, the server is asked what became
of that transaction before anything more is added. What is kept while the database is away is bounded: above
MOST_KEPT rows the oldest are put into one minute, so that times get coarser and counts stay right.

What can be missing: the last few seconds of a supervisor that was killed, and what its orphaned workers
still finished.

Elsewhere: the counters (metrics/page.py); the statements (db/tally.py); the rhythm (watch.py).
"""

from collections.abc import Callable, Mapping
from typing import Final

from supervisor.clock import DbClock
from supervisor.db import tally
from supervisor.db.jobs import Connection
from supervisor.db.link import in_transaction
from supervisor.db.links import Caller
from supervisor.errors import DatabaseUnavailable

MOST_KEPT: Final = 5_000
_MINUTE_S: Final = 60

# Put back uncharged, whatever for: one word.
_EVENTS: Final = {"suspect": "released", "interrupted": "released", "unknown": "released"}


class Tally:
    """What is not in the table yet.

    Args:
        totals: the counters, by queue and outcome; called from any thread.
        clock: the database's clock.
    """

    def __init__(
        self, link: Caller, schema: str, *, totals: Callable[[], Mapping[tuple[str, str], float]], clock: DbClock
    ) -> None:
        self._link = link
        self._schema = schema
        self._totals = totals
        self._clock = clock
        self._seen: dict[tuple[str, str], float] = {}
        self._kept: dict[tally.Row, int] = {}
        self._unsure: tuple[str, dict[tally.Row, int]] | None = None

    def take(self) -> None:
        """Keep what the counters have grown by."""
        minute = int(self._clock.now()) // _MINUTE_S * _MINUTE_S
        for (queue, outcome), total in self._totals().items():
            grown = round(total - self._seen.get((queue, outcome), 0.0))
            if grown > 0:
                self._seen[queue, outcome] = total
                self._keep({(minute, queue, _EVENTS.get(outcome, outcome)): grown})

    def _keep(self, rows: Mapping[tally.Row, int]) -> None:
        for row, count in rows.items():
            self._kept[row] = self._kept.get(row, 0) + count
        if len(self._kept) > MOST_KEPT:
            older = sorted(self._kept)[: len(self._kept) // 2]
            last = older[-1][0]
            for row in older:
                merged = (last, *row[1:])
                self._kept[merged] = self._kept.pop(row) + (self._kept.get(merged, 0) if merged != row else 0)

    async def write(self) -> None:
        """Add what is kept. Raises DatabaseUnavailable or psycopg.Error; then it stays kept."""
        if self._unsure is not None:
            await self._resolve()
        if self._unsure is not None or not self._kept:
            return
        rows, self._kept = self._kept, {}
        xid: str | None = None

        async def apply(conn: Connection) -> None:
            nonlocal xid
            xid = await tally.transaction_id(conn, self._schema)
            await tally.add(conn, self._schema, rows)

        try:
            await self._link.call(lambda conn: in_transaction(conn, apply))
        except BaseException as error:
            refused = not isinstance(error, DatabaseUnavailable) and isinstance(error, Exception)
            if refused or xid is None:
                self._keep(rows)
            else:
                self._unsure = (xid, rows)
            raise

    async def _resolve(self) -> None:
        """Find out about the transaction whose answer was lost."""
        assert self._unsure is not None
        xid, rows = self._unsure
        fate = await self._link.call(lambda conn: tally.fate(conn, self._schema, xid))
        if fate == "in progress":
            return
        self._unsure = None
        if fate == "aborted":
            self._keep(rows)
