"""Which parts of the outbox this relay leads, and for how long.

    lead_parts, a third of the lease apart:  renew --> gained, lost, or more than a fair share: retire
    retired and nothing of it in flight ---> give_parts: another relay takes it at once
    not renewed in time -------------------> everything is lost, before another relay may take it

Always true: by this process's clock a part is led no longer than until its lease ends by the database's: the time is
taken before the renewal is sent. Whatever a former leader still writes carries a token that matches nothing.

Elsewhere: the statements (db/functions/110_relay.sql); what leading means (relay.py).
"""

from __future__ import annotations

import asyncio
import os
import platform
import random
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

from supervisor.db import outbox
from supervisor.db.link import DatabaseError, Link, first_line
from supervisor.errors import DatabaseUnavailable
from supervisor.log import Repeats, get_logger
from supervisor.outbox.book import Book
from supervisor.release import VERSION
from supervisor.settings import Settings

PARTS: Final = 64
_SAFETY: Final = 0.85
"""The share of a lease after which it is given up when it could not be renewed."""

log = get_logger("relay")


class Leadership:
    """The parts of one relay.

    Args:
        on_change: called when parts were gained or lost.
        unsent: whether something of a part is on its way, so that it cannot be given back yet.
    """

    def __init__(
        self,
        link: Link,
        settings: Settings,
        book: Book,
        *,
        broker: str,
        on_change: Callable[[], None],
        unsent: Callable[[int], bool],
        detail: Callable[[], dict[str, Any]],
        relay: int | None = None,
    ) -> None:
        self.id = relay or secrets.randbits(63) or 1
        self._link = link
        self._settings = settings
        self._book = book
        self._broker = broker
        self._on_change = on_change
        self._unsent = unsent
        self._detail = detail
        self._until = 0.0
        self._soon = asyncio.Event()
        self._repeats = Repeats()
        self.leaving = False
        self.waiting = False

    @property
    def holds(self) -> bool:
        """Whether the lease still runs."""
        return time.monotonic() < self._until

    def soon(self) -> None:
        """Renew now: parts may be free, or `waiting` has changed."""
        self._soon.set()

    async def run(self) -> None:
        """Renew until cancelled."""
        every = self._settings.outbox_lease_s / 3
        while True:
            self._soon.clear()
            try:
                await self.renew()
            except (DatabaseUnavailable, DatabaseError) as error:
                self._repeats.tell(log.warning, "relay.not_renewed", reason=first_line(error), did="trying again")
            if not self.holds and self._book.parts:
                log.warning(
                    "relay.lease_passed", parts=len(self._book.parts), did="stopped sending until it is renewed"
                )
                for part in list(self._book.parts):
                    self._book.lose(part)
                self._on_change()
            if any(part.retiring for part in self._book.parts.values()):
                pause = min(every, 0.05)
            else:
                pause = every * random.uniform(0.8, 1.0) if self.holds else min(every, 0.5)
            await self._wait(pause)

    async def _wait(self, pause: float) -> None:
        try:
            async with asyncio.timeout(pause):
                await self._soon.wait()
        except TimeoutError:
            pass

    async def renew(self) -> None:
        """Say that this relay lives and take over what it leads now. Raises what Link.call does."""
        settings, asked_at = self._settings, time.monotonic()
        led = await self._link.call(
            lambda conn: outbox.lead_parts(
                conn,
                settings.schema_,
                relay=self.id,
                name=settings.name,
                host=platform.node(),
                pid=os.getpid(),
                version=VERSION,
                broker=self._broker,
                leaving=self.leaving,
                waiting=self.waiting and not self.leaving,
                detail=self._detail(),
                lease_s=settings.outbox_lease_s,
            )
        )
        self._until = asked_at + settings.outbox_lease_s * _SAFETY
        tokens = {lead.part: lead.token for lead in led}
        lost = [number for number, part in self._book.parts.items() if tokens.get(number) != part.token]
        for number in lost:
            self._book.lose(number)
        gained = [lead for lead in led if lead.part not in self._book.parts]
        if gained:
            held = await self._link.call(
                lambda conn: outbox.held_keys(conn, settings.schema_, parts=[lead.part for lead in gained])
            )
            for lead in gained:
                # Below `low` nothing is pending: see Look.settle.
                keys = [key for part, key in held if part == lead.part]
                self._book.gain(lead.part, lead.token, lead.low - 1, keys)
        if lost or gained:
            log.info("relay.parts", led=len(self._book.parts), gained=len(gained), lost=len(lost))
            self._on_change()
        if led:
            await self._share(led[0].share)

    async def _share(self, share: int) -> None:
        """Give back what is above the fair share, once nothing of it is on its way."""
        parts = self._book.parts
        above = len(parts) - sum(part.retiring for part in parts.values()) - share
        for part in sorted(parts.values(), key=lambda part: len(part.hand))[: max(0, above)]:
            part.retiring = True
        idle = [number for number, part in parts.items() if part.retiring and not self._unsent(number)]
        if idle:
            for number in idle:
                self._book.lose(number)
            await self._link.call(
                lambda conn: outbox.give_parts(conn, self._settings.schema_, relay=self.id, parts=idle)
            )
            log.info("relay.gave_parts", parts=len(idle), left=len(parts))

    async def leave(self) -> None:
        """This relay has stopped: its parts are free at once."""
        for part in list(self._book.parts):
            self._book.lose(part)
        await self._link.call(lambda conn: outbox.relay_gone(conn, self._settings.schema_, relay=self.id))
