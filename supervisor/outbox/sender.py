"""What is on its way to the broker, and the connection it goes by.

    book --take--> in flight --+-- confirmed ---------------> the next of its key may go; on_confirmed
                     up to     +-- refused -----------------> on_refused
                     a window  '-- broker gone or silent ---> back into the book, nothing is counted

    connection   away --connect--> there, at first for few events, for more as they are confirmed
                   ^                 |
                   '-- what is in flight lands -- lost

What goes wrong is one of two things. **The event's fault**: the broker refuses this one, or stays silent about it
while it confirms others sent later. Those are refused. **The broker's fault**: it is gone or silent. Then everything
waits, and it is connected to again, ever more patiently.

Always true: no event is sent while the broker is away; no event is on its way for longer than the limit of time and
a twentieth of it; what was sent lands in exactly one of three ways.

Elsewhere: what is sent next (book.py); what becomes of confirmed and refused ones (writer.py); brokers (driver.py).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from supervisor.db.link import first_line
from supervisor.dsn import mask
from supervisor.log import Repeats, get_logger
from supervisor.outbox.book import Book
from supervisor.outbox.driver import Publisher
from supervisor.outbox.event import BrokerDown, Event, EventRefused
from supervisor.settings import Settings

_FIRST_WINDOW: Final = 8
_CONNECT_S: Final = 10.0
_CHECK_S: Final = 1.0
_BACKOFF_S: Final = (0.1, 5.0)

log = get_logger("relay")


class Sender:
    """The sending side of one relay.

    Args:
        on_confirmed: called with an event that the broker has for good.
        on_refused: called with one that it will not have, and why.
        on_landed: called when one is no longer on its way, whatever became of it.
        on_there, on_away: called when the broker can be reached, and when it no longer can.
    """

    def __init__(
        self,
        publisher: Publisher,
        settings: Settings,
        book: Book,
        *,
        on_confirmed: Callable[[Event], None],
        on_refused: Callable[[Event, str], None],
        on_landed: Callable[[], None],
        on_there: Callable[[], None],
        on_away: Callable[[], None],
    ) -> None:
        self._publisher = publisher
        self._settings = settings
        self._book = book
        self._on_confirmed = on_confirmed
        self._on_refused = on_refused
        self._on_landed = on_landed
        self._on_there = on_there
        self._on_away = on_away
        self._flying: dict[Event, tuple[asyncio.Task[None], float]] = {}
        """What is on its way, and since when: oldest first."""
        self._flying_of: Counter[int] = Counter()
        self._overdue: set[Event] = set()
        self._window = _FIRST_WINDOW
        self._failures = 0
        self._confirmed_from = 0.0
        """When the last of the events that were confirmed was sent."""
        self._away = asyncio.Event()
        self._away.set()
        self._repeats = Repeats(every_s=5.0)
        self.there = False
        """Whether the broker can be reached."""
        self.error: str | None = None
        """Why the broker is away; None while it is there."""

    @property
    def in_flight(self) -> int:
        """Events that are on their way."""
        return len(self._flying)

    def in_flight_of(self, part: int) -> int:
        """Those of one part."""
        return self._flying_of[part]

    # ---- events

    def send(self) -> None:
        """Send what may be sent, as far as the window goes."""
        window = min(self._window, self._settings.outbox_batch)
        start, now = asyncio.get_running_loop().create_task, time.monotonic()
        while self.there and len(self._flying) < window and (event := self._book.take()) is not None:
            self._flying_of[event.part] += 1
            self._flying[event] = start(self._send(event)), now

    async def all_landed(self) -> None:
        """Wait until nothing is on its way."""
        while self._flying:
            await asyncio.wait([task for task, _ in self._flying.values()], return_when=asyncio.FIRST_COMPLETED)
            for event in [event for event, (task, _) in self._flying.items() if task.done()]:
                self._landed(event)  # cancelled before it began

    async def _send(self, event: Event) -> None:
        began = time.monotonic()
        try:
            await self._publisher.publish(event)
        except EventRefused as error:
            self._on_refused(event, str(error))
        except BrokerDown as error:
            self._return(event, str(error))
        except asyncio.CancelledError:
            if event not in self._overdue:
                raise
            self._unanswered(event, began, f"no confirmation within {self._settings.publish_timeout_s:g} s")
        except TimeoutError as error:
            self._unanswered(event, began, str(error))
        except Exception as error:  # a driver's fault must not stop the others, nor loop for ever
            log.exception("relay.driver_failed", id=event.id, topic=event.topic)
            self._on_refused(event, f"its driver failed: {type(error).__name__}: {first_line(error)}")
        else:
            self._confirmed_from = max(self._confirmed_from, began)
            self._failures = 0
            self._window = min(self._settings.outbox_batch, self._window * 2)
            self._book.sent(event)
            self._on_confirmed(event)
        finally:
            self._landed(event)
        self._on_landed()

    def _landed(self, event: Event) -> None:
        if self._flying.pop(event, None) is not None:
            self._flying_of[event.part] -= 1
        self._overdue.discard(event)

    def _unanswered(self, event: Event, began: float, reason: str) -> None:
        """It was sent at *began*; the broker says nothing: is it the event, or the broker?"""
        if self._confirmed_from > began:
            self._on_refused(event, f"{reason}, though events sent later were confirmed")
        else:
            self._return(event, reason)

    def _return(self, event: Event, reason: str) -> None:
        """Not sent, or not known to be: it goes out again once the broker is back."""
        self._book.back(event)
        self._lost(reason)

    async def end_silent(self) -> None:
        """End what the broker is silent about; one look at the oldest, since a timer for each event is dear."""
        patience = self._settings.publish_timeout_s
        while True:
            await asyncio.sleep(patience / 20)
            limit = time.monotonic() - patience
            for event, (task, since) in list(self._flying.items()):
                if since > limit:
                    break
                self._overdue.add(event)
                task.cancel()

    # ---- the connection

    async def keep_connected(self) -> None:
        """Connect to the broker, and again whenever it is away, until cancelled."""
        while True:
            await self._away.wait()
            if self._failures or self._confirmed_from:
                self._repeats.tell(
                    log.warning, "broker.down", reason=self.error, did="waiting for it; no event is charged"
                )
            await self._publisher.close()
            await self.all_landed()  # they end with their connection, at the latest by their time limit
            least, most = _BACKOFF_S
            if self._failures:
                await asyncio.sleep(min(most, least * 2 ** min(self._failures, 16)) * random.uniform(0.5, 1.0))
            self._failures += 1
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await self._publisher.connect()
            except (BrokerDown, TimeoutError) as error:
                self.error = mask(str(error)) or f"no answer within {_CONNECT_S:g} s"
                self._repeats.tell(log.warning, "broker.unreachable", reason=self.error, did="trying again")
                continue
            log.info("broker.connected")
            self.error = None
            self._window = _FIRST_WINDOW
            self._away.clear()
            self.there = True
            self._on_there()

    async def check(self) -> None:
        """See that the broker is there while there is nothing to send: an outage is to be seen before an event is."""
        while True:
            await asyncio.sleep(_CHECK_S)
            if self.there and not self._flying:
                try:
                    await self._publisher.check()
                except BrokerDown as error:
                    self._lost(str(error))

    def _lost(self, reason: str) -> None:
        """The broker is away: connect anew."""
        if self.there:
            self.there = False
            self.error = mask(reason)
            self._away.set()
            self._on_away()

    async def close(self) -> None:
        """Drop what is on its way, and hang up."""
        flying = [task for task, _ in self._flying.values()]
        for task in flying:
            task.cancel()
        await asyncio.gather(*flying, return_exceptions=True)
        await self._publisher.close()
