"""This worker's session: the one row its leases hang on.

    none --open--> live --move (an answer was lost)--> live under a new id
                     |--closed by others (reaped)----> none: every lease is lost
                     '--close------------------------> none: everything is accounted for

Always true: ids are random 63-bit numbers, never used twice. The scoreboard names the session before
the database does, so whoever recovers this worker can close it. When the answer to opening or moving is
lost, the same is said again with the same id: no second session is left behind, and no job on it.

Elsewhere: renewing it (parent/leases.py; orphan.py once the parent is gone).
"""

import secrets
import time
from collections.abc import Sequence

from supervisor.db import jobs
from supervisor.db.link import Link
from supervisor.wire.board import Board


class Session:
    """The worker's current session."""

    def __init__(self, link: Link, schema: str, *, parent: int, name: str, lease_s: float, board: Board) -> None:
        self._link = link
        self._schema = schema
        self._parent = parent
        self._name = name
        self._lease_s = lease_s
        self._board = board
        self._own_until = 0.0
        self._coming = 0  # the id of a session that was asked for and not yet confirmed
        self.id = 0
        """The session's id; 0 while there is none."""

    def lease_until(self) -> float:
        """The monotonic time until which the leases surely hold: by opening it, or as the parent renewed it."""
        return max(self._own_until, self._board.lease_until_ns / 1e9)

    def prolonged(self, since: float) -> None:
        """This worker itself renewed the session with a statement sent at *since* (monotonic)."""
        self._own_until = since + self._lease_s

    async def open(self) -> None:
        """Start a new session."""
        new = self._coming = self._coming or secrets.randbits(63) or 1
        sent = time.monotonic()
        self._board.set_header(session=new, next_session=0)
        await self._link.call(
            lambda conn: jobs.open_session(
                conn, self._schema, session=new, parent=self._parent, name=self._name, lease_s=self._lease_s
            )
        )
        self.id, self._coming = new, 0
        self.prolonged(sent)

    async def move(self, held: Sequence[tuple[int, int]]) -> set[int]:
        """Go on under a new session with the (id, token) pairs of *held*; the ids that came along.

        What the old one holds besides, a claim whose answer was lost, is freed by a sweep.
        """
        old, new = self.id, self._coming or secrets.randbits(63) or 1
        self._coming = new
        sent = time.monotonic()
        self._board.set_header(next_session=new)
        moved = await self._link.call(
            lambda conn: jobs.move_session(
                conn,
                self._schema,
                old=old,
                new=new,
                parent=self._parent,
                name=self._name,
                lease_s=self._lease_s,
                held=held,
            )
        )
        self._board.set_header(session=new, next_session=0)
        self.id, self._coming = new, 0
        self.prolonged(sent)
        return moved

    def lost(self) -> None:
        """Others have closed it, and with it what it was moving to."""
        self.id = self._coming = 0

    async def close(self) -> None:
        """End it."""
        if self.id:
            await self._link.call(lambda conn: jobs.close_session(conn, self._schema, session=self.id))
            self.id = 0
