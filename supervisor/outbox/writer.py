"""Storing what the broker said: confirmed events leave the outbox, refused ones are charged and at last parked.

    confirmed --+--> waiting --a batch per round trip--> stored, and out of the book
    refused ----'      ^ |
                       '-' database away: again, while their parts are led

Always true: an event is written off under the token of its part, and only while this relay leads it: what another
leads by now is its to judge. While one batch is written the next one gathers.

Elsewhere: the answers (sender.py); the statements (db/functions/110_relay.sql).
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from itertools import islice
from typing import Final

from supervisor.db import outbox
from supervisor.db.link import DatabaseError, Link, first_line
from supervisor.dsn import mask
from supervisor.errors import DatabaseUnavailable
from supervisor.log import Repeats, get_logger
from supervisor.metrics import metrics
from supervisor.outbox.book import Book
from supervisor.outbox.event import Event
from supervisor.settings import Settings

_MOST_AT_ONCE: Final = 1000
_MOST_ERROR: Final = 500
_RETRY_S: Final = 0.2

log = get_logger("relay")


class Writer:
    """The writing side of one relay.

    Args:
        relay: the relay's id.
        on_stored: called when a batch is stored.
    """

    def __init__(
        self, link: Link, settings: Settings, book: Book, *, relay: int, on_stored: Callable[[], None]
    ) -> None:
        self._link = link
        self._settings = settings
        self._book = book
        self._relay = relay
        self._on_stored = on_stored
        self._confirmed: deque[Event] = deque()
        self._refused: deque[tuple[Event, str]] = deque()
        self._waiting_of: Counter[int] = Counter()
        self._wanted = asyncio.Event()  # something to write
        self._idle = asyncio.Event()
        self._idle.set()
        self._repeats = Repeats(every_s=5.0)
        self.counts: Counter[str] = Counter()
        """published, refused, parked: events since the start."""

    @property
    def waiting(self) -> int:
        """Events whose answer is not stored yet."""
        return len(self._confirmed) + len(self._refused)

    def waiting_of(self, part: int) -> int:
        """Those of one part."""
        return self._waiting_of[part]

    def confirmed(self, event: Event) -> None:
        """The broker has it for good."""
        self._confirmed.append(event)
        self._take(event)

    def refused(self, event: Event, reason: str) -> None:
        """The broker will not have it."""
        self._refused.append((event, mask(reason)[:_MOST_ERROR].replace("\x00", "?")))
        self._take(event)

    def _take(self, event: Event) -> None:
        self._waiting_of[event.part] += 1
        self._idle.clear()
        self._wanted.set()

    async def all_stored(self) -> None:
        """Wait until nothing is left to write."""
        await self._idle.wait()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                while self._confirmed:
                    await self._store_confirmed()
                while self._refused:
                    await self._store_refused()
            except (DatabaseUnavailable, DatabaseError) as error:
                self._repeats.tell(
                    log.warning,
                    "relay.not_stored",
                    reason=first_line(error),
                    waiting=self.waiting,
                    did="trying again while its parts are led",
                )
                await asyncio.sleep(_RETRY_S)
                self._wanted.set()
                continue
            if not self.waiting:
                self._idle.set()

    async def _store_confirmed(self) -> None:
        batch = list(islice(self._confirmed, _MOST_AT_ONCE))
        settings = self._settings
        mine = [(event.part, token, event.id) for event in batch if (token := self._book.token(event)) is not None]
        if mine:
            await self._link.call(
                lambda conn: outbox.confirm_events(
                    conn,
                    settings.schema_,
                    relay=self._relay,
                    events=mine,
                    keep=settings.keep_sent_days > 0,
                    keep_payload=settings.keep_payload,
                )
            )
        for event in batch:
            self._confirmed.popleft()
            self._waiting_of[event.part] -= 1
            self._book.gone(event)
        self._count("published", len(batch))
        self._on_stored()

    async def _store_refused(self) -> None:
        batch = list(islice(self._refused, _MOST_AT_ONCE))
        settings = self._settings
        mine = [
            (event.part, token, event.id, reason)
            for event, reason in batch
            if (token := self._book.token(event)) is not None
        ]
        answers: dict[int, outbox.Refusal] = {}
        if mine:
            found = await self._link.call(
                lambda conn: outbox.refuse_events(
                    conn,
                    settings.schema_,
                    relay=self._relay,
                    events=mine,
                    max_attempts=settings.outbox_max_attempts,
                    base_s=settings.retry_base_s,
                    cap_s=settings.retry_cap_s,
                )
            )
            answers = {answer.id: answer for answer in found}
        for event, reason in batch:
            self._refused.popleft()
            self._waiting_of[event.part] -= 1
            answer = answers.get(event.id)
            if answer is None:
                self._book.gone(event)  # another leader's to judge, or it is not there any more
            else:
                self._charged(event, reason, answer)
        self._on_stored()

    def _charged(self, event: Event, reason: str, answer: outbox.Refusal) -> None:
        """A refusal was stored: the event is tried again later, or was parked."""
        self._count("refused")
        told = {
            "id": event.id,
            "event_id": event.event_id,
            "topic": event.topic,
            "attempts": answer.attempts,
            "reason": reason,
        }
        if answer.parked:
            self._count("parked")
            self._book.parked(event)
            self._repeats.tell(log.error, "event.parked", **told, remedy="supervisor outbox list, replay or drop")
        else:
            self._book.refused(event, answer.wait_s)
            self._repeats.tell(log.warning, "event.refused", **told, again_in_s=round(answer.wait_s, 1))

    def _count(self, what: str, events: int = 1) -> None:
        self.counts[what] += events
        metrics().outbox_events.labels(what).inc(events)
