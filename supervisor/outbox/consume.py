"""The consumer: from a broker to jobs, each event one job.

    broker --receive--> jobs --one transaction: inbox, enqueue--> committed --ack--> broker
                          '-- no job can be made of it --> inbox_parked, in the same transaction

An event that comes again, because its acknowledgement was lost or because it was published twice, is known by its id
and dropped. One that no job can be made of (not JSON, no kind for its topic, refused as a job) is kept in a table
with the reason, since the broker would deliver it for ever.

Always true: an event is acknowledged after its transaction was committed, never before.

Elsewhere: the brokers (driver.py, brokers/); the process (role.py); one's own consumers (supervisor/inbox.py);
retention (tidy.py).
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from supervisor.db import inbox
from supervisor.db.link import RETRYABLE, DatabaseError, Link, first_line, in_transaction
from supervisor.dsn import mask
from supervisor.errors import DatabaseUnavailable, InvalidJob
from supervisor.log import Repeats, get_logger
from supervisor.metrics import metrics
from supervisor.newjob import NewJob
from supervisor.outbox.driver import Delivery, Subscriber
from supervisor.outbox.event import BrokerDown
from supervisor.outbox.tidy import tidy
from supervisor.settings import Settings

_RECEIVE_S: Final = 1.0
_CONNECT_S: Final = 90.0
"""A group of Kafka's takes so long to let a member in, where another one has just died."""
_BACKOFF_S: Final = (0.1, 5.0)
_STRUCTURED: Final = "application/cloudevents+json"
_MOST_ID_BYTES: Final = 512
_NO_EVENTS_FAULT: Final = frozenset({"08", "25", "28", "3D", "3F", "42", "53", "57", "58", "F0", "XX"})
"""Classes of refusals that any event would meet: rights, tables, memory, disk, a fault of the server. Waited out."""

log = get_logger("consumer")


class Consumer:
    """One consumer of one broker."""

    def __init__(self, settings: Settings, database_url: str, subscriber: Subscriber) -> None:
        self._settings = settings
        self._subscriber = subscriber
        self._exact = dict(settings.consume)
        self._link = Link(
            database_url,
            name="pg-supervisor consume",
            statement_timeout_s=settings.statement_timeout_s,
            connect_timeout_s=settings.connect_timeout_s,
        )
        self._repeats = Repeats(every_s=5.0)
        self._connected = False
        self._show(False)
        self.counts: Counter[str] = Counter()
        """received, duplicate, parked: events since the start."""

    def troubles(self) -> Iterator[str]:
        """Why nothing is consumed now, in words without a name or an address; none while all is well."""
        if self._link.down_since is not None:
            yield "the database cannot be reached"
        if not self._connected:
            yield "the broker cannot be reached"

    async def run(self, stop: asyncio.Event) -> bool:
        """Consume until *stop*; what was received is stored and acknowledged first."""
        working = asyncio.create_task(self._work(stop))
        tidying = asyncio.create_task(tidy(self._link, self._settings, "consumer"))
        stopping = asyncio.create_task(stop.wait())
        whole = True
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await asyncio.wait({working}, timeout=self._settings.drain_timeout_s)
            whole = working.done()
            if whole:
                working.result()
        finally:
            for task in (working, tidying, stopping):
                task.cancel()
            await asyncio.gather(working, tidying, stopping, return_exceptions=True)
            await self._subscriber.close()
            await self._link.close()
            log.info("consumer.stopped", **dict(self.counts))
        return whole

    async def _work(self, stop: asyncio.Event) -> None:
        failures = 0
        while not stop.is_set():
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await self._subscriber.connect()
                self._there()
                while not stop.is_set():
                    found = await self._subscriber.receive(self._settings.outbox_batch, _RECEIVE_S)
                    failures = 0
                    if found:
                        self._there()
                        await self._store(found, stop)
                        await self._subscriber.ack(found)
                    else:
                        await self._check()
            except (BrokerDown, TimeoutError) as error:
                self._away(mask(str(error)) or f"no answer within {_CONNECT_S:g} s")
            except _Stopped:
                return
            self._show(False)
            await self._subscriber.close()
            least, most = _BACKOFF_S
            pause = min(most, least * 2 ** min(failures, 16)) * random.uniform(0.5, 1.0)
            failures += 1
            try:
                async with asyncio.timeout(pause):
                    await stop.wait()
            except TimeoutError:
                pass

    async def _check(self) -> None:
        """See whether the broker is there while nothing comes: an outage is to be seen before an event is."""
        try:
            await self._subscriber.check()
        except BrokerDown as error:
            self._away(mask(str(error)))
        else:
            self._there()

    def _there(self) -> None:
        if not self._connected:
            log.info("broker.connected", topics=[topic for topic, _ in self._settings.consume])
            self._show(True)

    def _away(self, reason: str) -> None:
        self._repeats.tell(log.warning, "broker.unreachable", reason=reason, did="trying again")
        self._show(False)

    def _show(self, connected: bool) -> None:
        self._connected = connected
        consumers = metrics().consumers
        consumers.labels("up").set(connected)
        consumers.labels("down").set(not connected)

    async def _store(self, deliveries: Sequence[Delivery], stop: asyncio.Event) -> None:
        """Commit a batch, however long the database is away; one by one when it refuses the whole for its contents."""
        jobs: list[tuple[Delivery, str]] = []
        parked: list[inbox.Parked] = []
        for delivery in deliveries:
            try:
                jobs.append((delivery, self._job(delivery)))
            except InvalidJob as refused:
                parked.append(_parked(delivery, f"{refused.field}: {refused.reason}"))
        try:
            await self._commit(jobs, parked, stop)
        except DatabaseError as error:
            self._repeats.tell(log.warning, "batch.refused", reason=first_line(error), did="storing one by one")
            for one in parked:
                await self._commit([], [one], stop)
            for delivery, job in jobs:
                try:
                    await self._commit([(delivery, job)], [], stop)
                except DatabaseError as refused:
                    await self._commit([], [_parked(delivery, first_line(refused))], stop)

    async def _commit(
        self, jobs: Sequence[tuple[Delivery, str]], parked: Sequence[inbox.Parked], stop: asyncio.Event
    ) -> None:
        settings = self._settings
        events = [(delivery.event_id, job) for delivery, job in jobs]
        while True:
            try:
                fresh = await self._link.call(
                    lambda conn: in_transaction(
                        conn,
                        lambda conn: inbox.receive(
                            conn, settings.schema_, consumer=settings.consumer, events=events, parked=parked
                        ),
                    )
                )
                break
            except DatabaseUnavailable as error:
                reason = first_line(error)
            except DatabaseError as error:
                if error.sqlstate not in RETRYABLE and (error.sqlstate or "")[:2] not in _NO_EVENTS_FAULT:
                    raise
                reason = first_line(error)
            # Sent again after a lost answer: what was committed is in the inbox, and dropped.
            self._repeats.tell(log.warning, "consumer.database_away", reason=reason, did="trying again")
            if stop.is_set():
                raise _Stopped
            await asyncio.sleep(random.uniform(0.2, 0.5))
        for outcome, count in (("received", fresh), ("duplicate", len(events) - fresh), ("parked", len(parked))):
            self.counts[outcome] += count
            metrics().consumed_events.labels(outcome).inc(count)
        for one in parked:
            self._repeats.tell(log.error, "event.parked", topic=one.topic, event_id=one.event_id, reason=one.reason)

    def _job(self, delivery: Delivery) -> str:
        """The job of one event, as an element of a bulk. Raises InvalidJob when there can be none."""
        kind = self.kind_of(delivery.topic)
        if kind is None:
            raise InvalidJob("topic", f"has no kind in SUPERVISOR_CONSUME: {delivery.topic!r}")
        _check_id(delivery.event_id)
        payload, attributes = _content(delivery)
        headers: dict[str, Any] = {**delivery.headers, "event": {"topic": delivery.topic, **attributes}}
        if delivery.key is not None:
            headers["event"]["key"] = delivery.key
        return NewJob(kind, payload, headers=headers).element("skip")

    def kind_of(self, topic: str) -> str | None:
        """The kind of the jobs of *topic*: its own, else that of the first pattern that it matches."""
        found = self._exact.get(topic)
        if found is None:
            found = next((kind for pattern, kind in self._settings.consume if matches(pattern, topic)), None)
        return found


class _Stopped(Exception):
    """Told to stop while the database is away: what was received is delivered again."""


def matches(pattern: str, topic: str) -> bool:
    """Whether *topic* is one of *pattern*: `*` is one word between dots, `>` (NATS) or `#` (AMQP) all that follow."""
    wanted, words = pattern.split("."), topic.split(".")
    for index, word in enumerate(wanted):
        if word == ">":
            return len(words) > index
        if word == "#":
            rest = wanted[index + 1 :]
            return (
                any(matches(".".join(rest), ".".join(words[at:])) for at in range(index, len(words))) if rest else True
            )
        if index >= len(words) or (word != "*" and word != words[index]):
            return False
    return len(wanted) == len(words)


def _content(delivery: Delivery) -> tuple[str, dict[str, str]]:
    """(payload as JSON text, attributes), of the binary mode or the structured one."""
    try:
        text = delivery.body.decode()
    except UnicodeDecodeError:
        raise InvalidJob("payload", "is not UTF-8 text") from None
    if not delivery.attributes.get("datacontenttype", "").lower().startswith(_STRUCTURED):
        return text, delivery.attributes
    try:
        envelope = json.loads(text)
        data = envelope.pop("data", None)
    except (ValueError, AttributeError, RecursionError):
        raise InvalidJob("payload", "says that it is a structured CloudEvent and is none") from None
    if isinstance(envelope.get("id"), str):
        delivery.event_id = envelope["id"]
        _check_id(delivery.event_id)
    return json.dumps(data), {str(name): str(value) for name, value in envelope.items()}


def _check_id(event_id: str) -> None:
    if not event_id or "\x00" in event_id or len(event_id.encode(errors="replace")) > _MOST_ID_BYTES:
        raise InvalidJob("event_id", f"is not a text of 1 to {_MOST_ID_BYTES} bytes")


def _parked(delivery: Delivery, reason: str) -> inbox.Parked:
    event_id = delivery.event_id.replace("\x00", "?").encode(errors="replace")[:_MOST_ID_BYTES].decode(errors="ignore")
    headers = json.dumps({**delivery.attributes, **delivery.headers}).replace("\\u0000", "?")
    return inbox.Parked(delivery.topic, event_id or "?", reason[:500], delivery.body, headers)
