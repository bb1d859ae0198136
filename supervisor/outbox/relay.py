"""The relay: from the outbox to the broker.

              look          take         publish                  confirm
    outbox ---------> book -------> up to a batch in flight ---------------> gone from the outbox
                        ^             |  refused: its attempts, then parked
                        '-------------'  broker down: back, nothing is counted

Four loops: leadership (lead.py); pump, which looks and sends; writer, which stores what the broker said, a batch per
round trip, while the next one gathers; link, which connects to the broker and, when it is gone, connects again.

What goes wrong is one of two things. **The event's fault**: the broker refuses this one, or stays silent about it
while it confirms others sent later. That is counted, tried again later, and at last parked; meanwhile only its key
waits. **The broker's fault**: it is gone or silent. Then everything waits, nothing is counted or parked, and it goes
on with few events at first and more as they are confirmed.

Always true: an event leaves the outbox only after the broker confirmed it; per key the next one is sent only after
that. Two relays never lead one part at a time (lead.py). What is sent twice, after a death or an outage, has the
same event id.

Elsewhere: reading (look.py); order (book.py); the brokers (driver.py, brokers/); the process (role.py).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, Final

from supervisor.db import outbox
from supervisor.db.link import DatabaseError, Link, first_line
from supervisor.db.listener import Listener
from supervisor.dsn import mask
from supervisor.errors import DatabaseUnavailable
from supervisor.floods import Floods
from supervisor.log import Repeats, get_logger
from supervisor.metrics import metrics
from supervisor.outbox.book import Book
from supervisor.outbox.driver import Publisher
from supervisor.outbox.event import BrokerDown, Event, EventRefused
from supervisor.outbox.lead import Leadership
from supervisor.outbox.look import Look
from supervisor.settings import Settings

_FIRST_WINDOW: Final = 8
_BUSY_S: Final = 0.2
_FIRST_PAUSE_S: Final = 0.002
_LONGEST_BUSY_PAUSE_S: Final = 0.05
_LATE_PAUSE_S: Final = 0.1
_WRITE_RETRY_S: Final = 0.2
_DATABASE_PAUSE_S: Final = 0.5
_MOST_WRITTEN: Final = 1000
_CONNECT_S: Final = 10.0
_CHECK_S: Final = 1.0
_BACKOFF_S: Final = (0.1, 5.0)
_HELD_EVERY_S: Final = 5.0
_HAND: Final = 4
"""Events in hand, in batches: one is on its way, one is being written off, the others are next."""
_MOST_ERROR: Final = 500
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
        self._publisher = publisher
        self._book = Book(hold=settings.outbox_after_parking == "hold")
        link = self._make_link(database_url)
        self._links = [link("relay lead"), link("relay look"), link("relay write")]
        self._write_link = self._links[2]
        self.lead = Leadership(
            self._links[0],
            settings,
            self._book,
            broker=broker,
            on_change=self._stir_now,
            unsent=lambda number: self._flying_of[number] > 0,
            detail=self.figures,
            relay=relay,
        )
        self._look = Look(self._links[1], settings, self._book, relay=self.lead.id)
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
        self._stir = asyncio.Event()
        self._wanted = asyncio.Event()  # something to write
        self._idle_writer = asyncio.Event()
        self._idle_writer.set()
        self._flying: dict[Event, tuple[asyncio.Task[None], float]] = {}
        """What is on its way, and since when: oldest first."""
        self._overdue: set[Event] = set()
        self._flying_of: Counter[int] = Counter()
        self._confirmed: deque[Event] = deque()
        self._refused: deque[tuple[Event, str]] = deque()
        self._up = False
        self._down = asyncio.Event()
        self._down.set()
        self._window = _FIRST_WINDOW
        self._failures = 0
        self._confirmed_from = 0.0
        """When the last of the events that were confirmed was sent."""
        self._told = True
        self._told_held = False
        self._held_at = 0.0
        self._busy_at = time.monotonic()
        self._pause = 0.0
        self._next_look = 0.0
        self._stopping = False
        self.counts: Counter[str] = Counter()
        """published, refused, parked: events since the start."""
        self.broker_error: str | None = None
        """Why the broker is away; None while it is there."""

    def figures(self) -> dict[str, Any]:
        """What this relay says of itself, for people."""
        return {
            **{name: self.counts[name] for name in ("published", "refused", "parked")},
            "in_hand": self._book.in_hand,
            "in_flight": len(self._flying),
            "broker_error": self.broker_error,
        }

    def troubles(self) -> Iterator[str]:
        """Why nothing is published now, in words without a name or an address; none while all is well."""
        if not self.lead.holds:
            yield "the database cannot be reached"
        if not self._up:
            yield "the broker cannot be reached"

    async def run(self, stop: asyncio.Event) -> bool:
        """Relay until *stop*; then let what is on its way arrive, and give the parts back. False if that was cut."""
        loops = [
            asyncio.create_task(work)
            for work in (
                self.lead.run(),
                self._broker(),
                self._pump(),
                self._writer(),
                self._tidy(),
                self._time_limits(),
                self._check_broker(),
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
            everything = (stopping, *loops, *(task for task, _ in self._flying.values()))
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)
            await self._publisher.close()
            for link in self._links:
                await link.close()

    async def _leave(self) -> bool:
        """Send nothing more, wait for what is on its way, give the parts back."""
        self._stopping = self.lead.leaving = True
        patience = self._settings.drain_timeout_s * _DRAIN_SHARE
        deadline = time.monotonic() + patience
        whole = True
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + patience):
                await self._all_landed()
                await self._idle_writer.wait()
        except TimeoutError:
            whole = False
            log.warning("relay.cut", in_flight=len(self._flying), did="left it to the next leader, who sends it again")
        try:
            async with asyncio.timeout(max(1.0, deadline - time.monotonic())):
                await self.lead.leave()
        except (DatabaseUnavailable, DatabaseError, TimeoutError) as error:
            log.warning("relay.row_left", reason=first_line(error), did="left its parts: the lease passes by itself")
        log.info("relay.stopped", **{name: self.counts[name] for name in ("published", "refused", "parked")})
        return whole

    # ---- looking and sending

    async def _pump(self) -> None:
        batch = self._settings.outbox_batch
        while True:
            self._stir.clear()
            if self._stopping or not self._up or not self.lead.holds:
                await self._rest(1.0)
                continue
            self._book.due()
            self._dispatch()
            await self._see_held()
            room = _HAND * batch - self._book.in_hand
            if room < batch and self._flying_of.total():
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
            self._dispatch()
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

    def _set_waiting(self, waiting: bool) -> None:
        if waiting != self.lead.waiting:
            self.lead.waiting = waiting
            self.lead.soon()

    def _flooded(self) -> None:
        """Notifications are too many, or may be wanted again: the look that follows decides."""
        if self._floods.paused:
            self._set_waiting(False)
        self._stir_now()

    async def _rest(self, pause: float) -> None:
        due = self._book.next_due_s()
        try:
            async with asyncio.timeout(min(pause, due if due is not None else pause)):
                await self._stir.wait()
        except TimeoutError:
            pass

    def _stir_now(self) -> None:
        self._told = True
        self._stir.set()

    def _dispatch(self) -> None:
        """Send what may be sent, as far as the window goes."""
        window = min(self._window, self._settings.outbox_batch)
        start, now = asyncio.get_running_loop().create_task, time.monotonic()
        while self._up and len(self._flying) < window and (event := self._book.take()) is not None:
            self._flying_of[event.part] += 1
            self._flying[event] = start(self._send(event)), now

    async def _all_landed(self) -> None:
        """Wait until nothing is on its way."""
        while self._flying:
            await asyncio.wait([task for task, _ in self._flying.values()], return_when=asyncio.FIRST_COMPLETED)
            for event in [event for event, (task, _) in self._flying.items() if task.done()]:
                del self._flying[event]  # cancelled before it began

    async def _time_limits(self) -> None:
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

    async def _send(self, event: Event) -> None:
        began = time.monotonic()
        try:
            await self._publisher.publish(event)
        except EventRefused as error:
            self._refuse(event, str(error))
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
            self._refuse(event, f"its driver failed: {type(error).__name__}: {first_line(error)}")
        else:
            self._confirmed_from = max(self._confirmed_from, began)
            self._failures = 0
            self._window = min(self._settings.outbox_batch, self._window * 2)
            self._book.sent(event)
            self._confirmed.append(event)
            self._write_soon()
        finally:
            self._flying.pop(event, None)
            self._overdue.discard(event)
        self._stir.set()

    def _unanswered(self, event: Event, began: float, reason: str) -> None:
        """It was sent at *began*; the broker says nothing: is it the event, or the broker?"""
        if self._confirmed_from > began:
            self._refuse(event, f"{reason}, though events sent later were confirmed")
        else:
            self._return(event, reason)

    def _return(self, event: Event, reason: str) -> None:
        """Not sent, or not known to be: it goes out again once the broker is back."""
        self._flying_of[event.part] -= 1
        self._book.back(event)
        self._lost(reason)

    def _lost(self, reason: str) -> None:
        """The broker is away: connect anew."""
        if self._up:
            self._up = False
            self.broker_error = mask(reason)
            self._down.set()
            self._set_waiting(False)  # it could send nothing that it is told of, and telling costs who commits
            self.lead.soon()  # its row says so too

    def _refuse(self, event: Event, reason: str) -> None:
        self._refused.append((event, mask(reason)[:_MOST_ERROR].replace("\x00", "?")))
        self._write_soon()

    def _write_soon(self) -> None:
        self._idle_writer.clear()
        self._wanted.set()

    # ---- storing what the broker said

    async def _writer(self) -> None:
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
                    waiting=len(self._confirmed) + len(self._refused),
                    did="trying again while its parts are led",
                )
                await asyncio.sleep(_WRITE_RETRY_S)
                self._wanted.set()
                continue
            if not self._confirmed and not self._refused:
                self._idle_writer.set()

    async def _store_confirmed(self) -> None:
        batch = [self._confirmed[n] for n in range(min(len(self._confirmed), _MOST_WRITTEN))]
        settings = self._settings
        mine = [(event.part, token, event.id) for event in batch if (token := self._book.token(event)) is not None]
        if mine:
            await self._write_link.call(
                lambda conn: outbox.confirm_events(
                    conn,
                    settings.schema_,
                    relay=self.lead.id,
                    events=mine,
                    keep=settings.keep_sent_days > 0,
                    keep_payload=settings.keep_payload,
                )
            )
        for event in batch:
            self._confirmed.popleft()
            self._flying_of[event.part] -= 1
            self._book.gone(event)
        self.counts["published"] += len(batch)
        metrics().outbox_events.labels("published").inc(len(batch))
        self._stir.set()

    async def _store_refused(self) -> None:
        batch = [self._refused[n] for n in range(min(len(self._refused), _MOST_WRITTEN))]
        settings = self._settings
        mine = [
            (event.part, token, event.id, reason)
            for event, reason in batch
            if (token := self._book.token(event)) is not None
        ]
        answers: dict[int, outbox.Refusal] = {}
        if mine:
            found = await self._write_link.call(
                lambda conn: outbox.refuse_events(
                    conn,
                    settings.schema_,
                    relay=self.lead.id,
                    events=mine,
                    max_attempts=settings.outbox_max_attempts,
                    base_s=settings.retry_base_s,
                    cap_s=settings.retry_cap_s,
                )
            )
            answers = {answer.id: answer for answer in found}
        for event, reason in batch:
            self._refused.popleft()
            self._flying_of[event.part] -= 1
            answer = answers.get(event.id)
            if answer is None:
                self._book.gone(event)  # another leader's to judge, or it is not there any more
                continue
            self.counts["refused"] += 1
            metrics().outbox_events.labels("refused").inc()
            told = {
                "id": event.id,
                "event_id": event.event_id,
                "topic": event.topic,
                "attempts": answer.attempts,
                "reason": reason,
            }
            if answer.parked:
                self.counts["parked"] += 1
                metrics().outbox_events.labels("parked").inc()
                self._book.parked(event)
                self._repeats.tell(log.error, "event.parked", **told, remedy="supervisor outbox list, replay or drop")
            else:
                self._book.refused(event, answer.wait_s)
                self._repeats.tell(log.warning, "event.refused", **told, again_in_s=round(answer.wait_s, 1))
        self._stir.set()

    # ---- keys that are held back

    async def _see_held(self) -> None:
        """See whether an operator has freed held keys: when told, and from time to time."""
        if not self._told_held and not (self._book.any_held and time.monotonic() > self._held_at + _HELD_EVERY_S):
            return
        self._told_held = False
        self._held_at = time.monotonic()
        parts = list(self._book.parts)
        try:
            held = await self._links[1].call(lambda conn: outbox.held_keys(conn, self._settings.schema_, parts=parts))
        except (DatabaseUnavailable, DatabaseError):
            self._told_held = True  # the look that follows says what is wrong
            return
        if self._book.released(held):
            self._told = True

    # ---- the broker

    async def _broker(self) -> None:
        while True:
            await self._down.wait()
            if self._failures or self._confirmed_from:
                self._repeats.tell(
                    log.warning, "broker.down", reason=self.broker_error, did="waiting for it; no event is charged"
                )
            await self._publisher.close()
            await self._all_landed()  # they end with their connection, at the latest by their time limit
            least, most = _BACKOFF_S
            if self._failures:
                await asyncio.sleep(min(most, least * 2 ** min(self._failures, 16)) * random.uniform(0.5, 1.0))
            self._failures += 1
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await self._publisher.connect()
            except (BrokerDown, TimeoutError) as error:
                self.broker_error = mask(str(error)) or f"no answer within {_CONNECT_S:g} s"
                self._repeats.tell(log.warning, "broker.unreachable", reason=self.broker_error, did="trying again")
                continue
            log.info("broker.connected")
            self.broker_error = None
            self._window = _FIRST_WINDOW
            self._down.clear()
            self._up = True
            self._stir_now()

    async def _check_broker(self) -> None:
        """See that the broker is there while there is nothing to send: an outage is to be seen before an event is."""
        while True:
            await asyncio.sleep(_CHECK_S)
            if self._up and not self._flying:
                try:
                    await self._publisher.check()
                except BrokerDown as error:
                    self._lost(str(error))

    # ---- the rest

    async def _tidy(self) -> None:
        settings, day = self._settings, 86400.0
        while True:
            pause = 60.0
            try:
                gone = await self._links[0].call(
                    lambda conn: outbox.tidy(
                        conn,
                        settings.schema_,
                        keep_sent_s=settings.keep_sent_days * day,
                        keep_inbox_s=settings.keep_inbox_days * day,
                        keep_parked_s=settings.keep_dead_days * day,
                        limit=_MOST_WRITTEN,
                    )
                )
                if gone >= _MOST_WRITTEN:
                    pause = 1.0
            except (DatabaseUnavailable, DatabaseError) as error:
                self._repeats.tell(log.warning, "relay.not_tidied", reason=first_line(error), did="trying again")
            await asyncio.sleep(pause)

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

    def _make_link(self, url: str) -> Any:
        settings = self._settings

        def link(name: str) -> Link:
            patience = settings.outbox_lease_s / 3 if name.endswith("lead") else settings.statement_timeout_s
            return Link(
                url,
                name=f"pg-supervisor {name}",
                statement_timeout_s=min(patience, settings.statement_timeout_s),
                connect_timeout_s=min(settings.connect_timeout_s, max(1.0, patience)),
            )

        return link
