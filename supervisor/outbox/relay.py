"""The relay: from the outbox to the broker.

              look          take         send                     store
    outbox ---------> book -------> up to a batch in flight ---------------> gone from the outbox
                        ^             |  refused: its attempts, then parked
                        '-------------'  broker down: back, nothing is counted

Each arrow is a room: leadership (lead.py), reading (look.py), order (book.py), sending (sender.py), storing what the
broker said (writer.py). This one puts them together and runs the pump: it looks when somebody told it to, when there
is more, or after a while, sends, and looks again. The busier the outbox is the sooner; where it is quiet it lets
producers know that it waits, and they tell it.

A relay that stops sends nothing more, lets what is on its way arrive, stores that, and gives its parts back.

Always true: an event leaves the outbox only after the broker confirmed it; per key the next one is sent only after
that. Two relays never lead one part at a time (lead.py). What is sent twice, after a death or an outage, has the
same event id.

Elsewhere: the process (role.py); retention (tidy.py); the brokers (driver.py, brokers/).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any, Final

from supervisor.db import outbox
from supervisor.db.link import DatabaseError, Link, first_line
from supervisor.db.listener import Listener
from supervisor.errors import DatabaseUnavailable
from supervisor.floods import Floods
from supervisor.log import Repeats, get_logger
from supervisor.outbox.book import Book
from supervisor.outbox.driver import Publisher
from supervisor.outbox.lead import Leadership
from supervisor.outbox.look import Look
from supervisor.outbox.sender import Sender
from supervisor.outbox.tidy import tidy
from supervisor.outbox.writer import Writer
from supervisor.settings import Settings

_BUSY_S: Final = 0.2
_FIRST_PAUSE_S: Final = 0.002
_LONGEST_BUSY_PAUSE_S: Final = 0.05
_LATE_PAUSE_S: Final = 0.1
_DATABASE_PAUSE_S: Final = 0.5
_HELD_EVERY_S: Final = 5.0
_HAND: Final = 4
"""Events in hand, in batches: one is on its way, one is being written off, the others are next."""
_DRAIN_SHARE: Final = 0.8
"""Of the drain's time, for what is on its way; the rest is for giving the parts back."""

log = get_logger("relay")


class Relay:
    """One relay.

    Args:
        broker: the address to show.
    """

    def __init__(
        self, settings: Settings, database_url: str, publisher: Publisher, *, broker: str, relay: int | None = None
    ) -> None:
        self._settings = settings
        self._book = Book(hold=settings.outbox_after_parking == "hold")
        self._lead_link = _link(database_url, settings, "lead", patience_s=settings.outbox_lease_s / 3)
        self._look_link = _link(database_url, settings, "look", patience_s=settings.statement_timeout_s)
        self._write_link = _link(database_url, settings, "write", patience_s=settings.statement_timeout_s)
        self.lead = Leadership(
            self._lead_link,
            settings,
            self._book,
            broker=broker,
            on_change=self._stir_now,
            unsent=self._unsent,
            detail=self.figures,
            relay=relay,
        )
        self._look = Look(self._look_link, settings, self._book, relay=self.lead.id)
        self._stir = asyncio.Event()
        self._writer = Writer(self._write_link, settings, self._book, relay=self.lead.id, on_stored=self._stir.set)
        self._sender = Sender(
            publisher,
            settings,
            self._book,
            on_confirmed=self._writer.confirmed,
            on_refused=self._writer.refused,
            on_landed=self._stir.set,
            on_there=self._stir_now,
            on_away=self._broker_away,
        )
        listen_url = settings.listen_database_url.get_secret_value() if settings.listen_database_url else database_url
        self._listener = Listener(
            listen_url,
            settings.schema_,
            name="pg-supervisor relay listen",
            connect_timeout_s=settings.connect_timeout_s,
            on_notice=self._notice,
            on_listening=self._heard_again,
            on_lost=self._deaf,
            on_deaf=lambda: self._deaf("a transaction-mode pooler is in between"),
            suffix=outbox.CHANNEL_SUFFIX,
        )
        self._floods = Floods(look=self._stir_now, on_change=self._flooded, what="events", who="relay")
        self._repeats = Repeats(every_s=5.0)
        self._told = True
        self._told_held = False
        self._held_at = 0.0
        self._busy_at = time.monotonic()
        self._pause = 0.0
        self._next_look = 0.0
        self._stopping = False

    def figures(self) -> dict[str, Any]:
        """What this relay says of itself, for people."""
        return {
            **self._counts(),
            "in_hand": self._book.in_hand,
            "in_flight": self._sender.in_flight,
            "broker_error": self._sender.error,
        }

    def troubles(self) -> Iterator[str]:
        """Why nothing is published now, in words without a name or an address; none while all is well."""
        if not self.lead.holds:
            yield "the database cannot be reached"
        if not self._sender.there:
            yield "the broker cannot be reached"

    def _counts(self) -> dict[str, int]:
        return {name: self._writer.counts[name] for name in ("published", "refused", "parked")}

    def _unsent(self, part: int) -> bool:
        return self._sender.in_flight_of(part) + self._writer.waiting_of(part) > 0

    # ---- its life

    async def run(self, stop: asyncio.Event) -> bool:
        """Relay until *stop*; then let what is on its way arrive, and give the parts back. False if that was cut."""
        loops = [
            asyncio.create_task(work)
            for work in (
                self.lead.run(),
                self._sender.keep_connected(),
                self._sender.end_silent(),
                self._sender.check(),
                self._pump(),
                self._writer.run(),
                tidy(self._lead_link, self._settings, "relay"),
            )
        ]
        if self._settings.wake:
            loops += [asyncio.create_task(self._listener.run()), asyncio.create_task(self._floods.run())]
        stopping = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait({stopping, *loops}, return_when=asyncio.FIRST_COMPLETED)
            for loop in done - {stopping}:
                loop.result()  # a loop that ends by itself is a fault of ours
            return await self._leave()
        finally:
            for task in (stopping, *loops):
                task.cancel()
            await asyncio.gather(stopping, *loops, return_exceptions=True)
            await self._sender.close()
            for link in (self._lead_link, self._look_link, self._write_link):
                await link.close()

    async def _leave(self) -> bool:
        """Send nothing more, wait for what is on its way, give the parts back."""
        self._stopping = self.lead.leaving = True
        patience = self._settings.drain_timeout_s * _DRAIN_SHARE
        deadline = time.monotonic() + patience
        whole = True
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + patience):
                await self._sender.all_landed()
                await self._writer.all_stored()
        except TimeoutError:
            whole = False
            log.warning(
                "relay.cut", in_flight=self._sender.in_flight, did="left it to the next leader, who sends it again"
            )
        try:
            async with asyncio.timeout(max(1.0, deadline - time.monotonic())):
                await self.lead.leave()
        except (DatabaseUnavailable, DatabaseError, TimeoutError) as error:
            log.warning("relay.row_left", reason=first_line(error), did="left its parts: the lease passes by itself")
        log.info("relay.stopped", **self._counts())
        return whole

    # ---- the pump

    async def _pump(self) -> None:
        batch = self._settings.outbox_batch
        while True:
            self._stir.clear()
            if self._stopping or not self._sender.there or not self.lead.holds:
                await self._rest(1.0)
                continue
            self._book.due()
            self._sender.send()
            await self._see_held()
            room = _HAND * batch - self._book.in_hand
            if room < batch and (self._sender.in_flight or self._writer.waiting):
                await self._rest(1.0)  # until something has arrived
                continue
            early = self._next_look - time.monotonic()
            if early > 0 and not self._told and not self._any_more():
                await self._rest(early)
                continue
            self._told = False
            try:
                found = await self._look.look(max(1, room))
            except (DatabaseUnavailable, DatabaseError) as error:
                self._repeats.tell(log.warning, "relay.database_away", reason=first_line(error), did="trying again")
                self._told = True
                await asyncio.sleep(_DATABASE_PAUSE_S)
                continue
            self._floods.looked(found > 0)
            self._sender.send()
            self._pause = self._next_pause(found)
            self._next_look = time.monotonic() + self._pause

    def _any_more(self) -> bool:
        return any(part.more for part in self._book.parts.values() if not part.retiring)

    def _next_pause(self, found: int) -> float:
        """Until the next look, where nobody tells of anything: soon at first, later when told or polling."""
        now = time.monotonic()
        if found:
            self._busy_at = now
            self._set_waiting(False)
            return 0.0 if found >= self._settings.outbox_batch // 4 else _FIRST_PAUSE_S
        if now - self._busy_at < _BUSY_S:
            return min(_LONGEST_BUSY_PAUSE_S, max(_FIRST_PAUSE_S, self._pause * 2))
        if self._settings.wake and not self.lead.waiting and not self._floods.paused:
            self._set_waiting(True)
            return _LONGEST_BUSY_PAUSE_S  # whoever committed before that was known sent no notice
        settings = self._settings
        longest = settings.poll_every_s if self._listener.listening else settings.poll_without_listen_s
        # So it is with transactions that were open then.
        return min(longest, _LATE_PAUSE_S) if self._look.open else longest

    async def _rest(self, pause: float) -> None:
        due = self._book.next_due_s()
        try:
            async with asyncio.timeout(min(pause, due if due is not None else pause)):
                await self._stir.wait()
        except TimeoutError:
            pass

    async def _see_held(self) -> None:
        """See whether an operator has freed held keys: when told, and from time to time."""
        if not self._told_held and not (self._book.any_held and time.monotonic() > self._held_at + _HELD_EVERY_S):
            return
        self._told_held = False
        self._held_at = time.monotonic()
        parts = list(self._book.parts)
        try:
            held = await self._look_link.call(lambda conn: outbox.held_keys(conn, self._settings.schema_, parts=parts))
        except (DatabaseUnavailable, DatabaseError):
            self._told_held = True  # the look that follows says what is wrong
            return
        if self._book.released(held):
            self._told = True

    # ---- what it is told

    def _stir_now(self) -> None:
        self._told = True
        self._stir.set()

    def _set_waiting(self, waiting: bool) -> None:
        if waiting != self.lead.waiting:
            self.lead.waiting = waiting
            self.lead.soon()

    def _broker_away(self) -> None:
        self._set_waiting(False)  # it could send nothing that it is told of, and telling costs who commits
        self.lead.soon()  # its row says so too

    def _flooded(self) -> None:
        """Notifications are too many, or may be wanted again: the look that follows decides."""
        if self._floods.paused:
            self._set_waiting(False)
        self._stir_now()

    def _notice(self, payload: str) -> None:
        if payload == "released":
            self._told_held = True
        elif payload == "added":
            self._floods.heard()
        elif payload == "parts":
            self.lead.soon()
            return
        self._stir_now()

    async def _heard_again(self) -> None:
        self._stir_now()

    def _deaf(self, reason: str) -> None:
        self._repeats.tell(log.warning, "relay.deaf", reason=reason, did="polling until it is back")


def _link(url: str, settings: Settings, name: str, *, patience_s: float) -> Link:
    """A connection of the relay; what waits on it for longer than *patience_s* is given up."""
    return Link(
        url,
        name=f"pg-supervisor relay {name}",
        statement_timeout_s=min(patience_s, settings.statement_timeout_s),
        connect_timeout_s=min(settings.connect_timeout_s, max(1.0, patience_s)),
    )
