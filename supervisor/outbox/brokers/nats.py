"""NATS JetStream: the event's topic is the subject, and a stream of the server's takes it.

    nats://user:password@host:4222,host2:4222       also tls://; a user alone is a token

Published with `Nats-Msg-Id`, so that what is sent again within the stream's duplicate window is stored once.
Streams are made by whoever owns them, not here: a subject that no stream takes is that event's fault, unless
JetStream itself does not answer. Consumed by a durable pull consumer per topic.

Always true: no subject reaches the server that its protocol could take for something else.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from zlib import crc32

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig
from nats.js.client import JetStreamContext

from supervisor.errors import BrokerRefused
from supervisor.outbox.driver import Address, Delivery, split_headers
from supervisor.outbox.event import BrokerDown, Event, EventRefused
from supervisor.release import VERSION

_SUBJECT: Final = re.compile(r"[^\s.*>\x00-\x1f\x7f]+(\.[^\s.*>\x00-\x1f\x7f]+)*")
_FILTER: Final = re.compile(r"([^\s.>\x00-\x1f\x7f]+\.)*([^\s.>\x00-\x1f\x7f]+|>)")
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_ACK_WAIT_S: Final = 30.0
_MOST_UNACKED: Final = 5000
_PORT: Final = 4222
_PING_S: Final = 10
"""A connection on which two of these are not answered is given up."""
_API_S: Final = 3.0
_KNOWN_S: Final = 1.0
_HEADERS: Final = {
    "datacontenttype": "content-type",
    **{name: f"ce-{name}" for name in ("specversion", "id", "type", "source", "time", "partitionkey")},
}
"""Of the attributes that each event has, or nearly."""
_NO_RESPONDERS: Final = "503"
# What JetStream answers while it has no leader, no peers or no resources: nothing that an event could help.
_OUTAGE_CODES: Final = frozenset({10008, 10009, 10023, 10028, 10039, 10074})
_ERRORS: Final = (nats.errors.Error, OSError, TimeoutError)


class Connection:
    """A connection to the servers of one address, without the client's own reconnecting: that hides outages.

    Args:
        on_lost: called once it is gone, whoever ended it.
    """

    def __init__(self, address: Address, on_lost: Callable[[], None]) -> None:
        address.take()
        self._address = address
        self._on_lost = on_lost
        self._client: Client | None = None
        self._js: JetStreamContext | None = None

    async def connect(self) -> None:
        """Connect, and see that JetStream answers. Raises BrokerDown."""
        address = self._address
        options: dict[str, Any] = {}
        if address.password is not None:
            options = {"user": address.user, "password": address.password}
        elif address.user is not None:
            options = {"token": address.user}  # as in the client's own addresses
        try:
            self._client = await nats.connect(
                [f"{address.scheme}://{host}:{port or _PORT}" for host, port in address.hosts],
                name=f"pg-supervisor {VERSION}",
                allow_reconnect=False,
                connect_timeout=3,
                ping_interval=_PING_S,
                max_outstanding_pings=2,
                error_cb=_ignore,  # whatever it is, the call that it belongs to fails too
                disconnected_cb=self._lost,
                closed_cb=self._lost,
                pending_size=64 << 20,
                **options,
            )
        except _ERRORS as error:
            raise self.down(words(error)) from error
        self._js = self._client.jetstream(timeout=_API_S)
        try:
            await self._js.account_info()
        except _ERRORS as error:
            await self.close()
            raise self.down(f"JetStream does not answer ({words(error)}); is it enabled?") from error

    @property
    def client(self) -> Client:
        """The client while it is connected; else raises BrokerDown."""
        if self._client is None or not self._client.is_connected:
            raise self.down("not connected")
        return self._client

    @property
    def js(self) -> JetStreamContext:
        """JetStream on it; else raises BrokerDown."""
        if self._js is None or not self.client.is_connected:
            raise self.down("not connected")
        return self._js

    def down(self, why: str) -> BrokerDown:
        """The error for an outage."""
        return BrokerDown(f"{self._address.shown}: {why}")

    async def _lost(self) -> None:
        self._on_lost()

    async def close(self) -> None:
        """Hang up."""
        client, self._client, self._js = self._client, None, None
        if client is not None:
            try:
                async with asyncio.timeout(1.0):
                    await client.close()
            except _ERRORS:
                pass  # it is gone, which is what was wanted
        self._on_lost()


async def _ignore(_: Exception) -> None:
    return None


class NatsPublisher:
    """Publishes to JetStream, any number at a time over one connection."""

    def __init__(self, address: Address, source: str) -> None:
        self._connection = Connection(address, self._fail_all)
        self._source = source
        self._inbox = ""
        self._numbers = itertools.count()
        self._asked: dict[str, asyncio.Future[Msg]] = {}
        self._taken: dict[str, tuple[float, bool]] = {}

    async def connect(self) -> None:
        """See Publisher."""
        await self._connection.connect()
        self._taken.clear()
        try:
            self._inbox = self._connection.client.new_inbox()
            await self._connection.client.subscribe(f"{self._inbox}.*", cb=self._answered)
        except _ERRORS as error:
            await self.close()
            raise self._connection.down(words(error)) from error

    async def check(self) -> None:
        """See Publisher."""
        _ = self._connection.client

    async def publish(self, event: Event) -> None:
        """See Publisher."""
        client = self._connection.client
        if not _SUBJECT.fullmatch(event.topic):
            raise EventRefused("its topic is no subject: it has spaces, wildcards or empty parts")
        headers = event.extras()
        for name, value in event.attributes(self._source).items():
            headers[_HEADERS.get(name) or f"ce-{name}"] = value
        headers["Nats-Msg-Id"] = event.event_id
        if len(event.body) + len(event.headers_json) > client.max_payload // 2:
            _check_size(event, headers, client.max_payload)
        number = str(next(self._numbers))
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            await client.publish(event.topic, event.body, reply=f"{self._inbox}.{number}", headers=headers)
            said = await answer
        except (nats.errors.BadHeaderError, nats.errors.BadSubjectError, nats.errors.MaxPayloadError) as error:
            raise EventRefused(f"the client refused it: {words(error)}") from error
        except (nats.errors.Error, OSError) as error:
            raise self._connection.down(words(error)) from error
        finally:
            self._asked.pop(number, None)
        await self._judge(event, said)

    async def _judge(self, event: Event, said: Msg) -> None:
        if said.headers and said.headers.get("Status") == _NO_RESPONDERS:
            if await self._takes(event.topic):
                raise self._connection.down("no answer for a subject that a stream takes")
            raise EventRefused(f"no stream takes the subject {event.topic!r}")
        try:
            confirmed = json.loads(said.data)
            error = confirmed.get("error")
            stream = confirmed.get("stream")
        except (ValueError, AttributeError):
            raise EventRefused("something else than JetStream answers on its subject") from None
        if error is None and stream:
            return
        told = error if isinstance(error, dict) else {}
        code, description = told.get("err_code"), told.get("description")
        if code in _OUTAGE_CODES:
            raise self._connection.down(f"JetStream: {description} ({code})")
        raise EventRefused(f"JetStream refused it: {description} ({code})")

    async def _answered(self, said: Msg) -> None:
        answer = self._asked.get(said.subject.rpartition(".")[2])
        if answer is not None and not answer.done():
            answer.set_result(said)

    def _fail_all(self) -> None:
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(nats.errors.ConnectionClosedError())

    async def _takes(self, subject: str) -> bool:
        """Whether a stream takes *subject*. Raises BrokerDown when JetStream does not answer that."""
        known = self._taken.get(subject)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        try:
            await self._connection.js.find_stream_name_by_subject(subject)
            found = True
        except nats.js.errors.NotFoundError:
            found = False
        except _ERRORS as error:
            raise self._connection.down(f"JetStream does not answer ({words(error)})") from error
        if len(self._taken) > 10_000:
            self._taken.clear()
        self._taken[subject] = (time.monotonic() + _KNOWN_S, found)
        return found

    async def close(self) -> None:
        """See Publisher."""
        await self._connection.close()


def _check_size(event: Event, headers: Mapping[str, str], most: int) -> None:
    """Refuse what the server would end the connection for. A header is its texts and four bytes around them."""
    size = len(event.body) + 16 + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items())
    if size > most:
        raise EventRefused(f"it has {size} bytes with its headers, the server's max_payload is {most}")


def words(error: BaseException) -> str:
    """An error of the client in one line."""
    return (str(error).splitlines() or [""])[0] or type(error).__name__


class NatsSubscriber:
    """One durable pull consumer per topic, in the stream that takes it."""

    def __init__(self, address: Address, topics: Sequence[str], consumer: str) -> None:
        for topic in topics:
            if not _FILTER.fullmatch(topic):
                raise BrokerRefused("SUPERVISOR_CONSUME", f"{topic!r} is no subject")
        self._connection = Connection(address, lambda: None)
        self._topics = topics
        self._consumer = consumer
        self._subscriptions: list[JetStreamContext.PullSubscription] = []

    async def connect(self) -> None:
        """See Subscriber."""
        await self._connection.connect()
        try:
            for topic in self._topics:
                stream = await self._connection.js.find_stream_name_by_subject(topic)
                durable = f"{_NO_NAME.sub('_', self._consumer)}-{_NO_NAME.sub('_', topic)}-{crc32(topic.encode()):08x}"
                config = ConsumerConfig(ack_wait=_ACK_WAIT_S, max_ack_pending=_MOST_UNACKED)
                self._subscriptions.append(
                    await self._connection.js.pull_subscribe(topic, durable, stream=stream, config=config)
                )
        except nats.js.errors.NotFoundError as error:
            await self.close()
            raise self._connection.down(f"no stream takes the subject {topic!r}") from error
        except _ERRORS as error:
            await self.close()
            raise self._connection.down(words(error)) from error

    async def receive(self, limit: int, wait_s: float) -> list[Delivery]:
        """See Subscriber."""
        self._connection.client  # noqa: B018 - raises when it is gone
        each = max(1, limit // len(self._subscriptions))
        found = await asyncio.gather(
            *(_fetch(one, each, wait_s) for one in self._subscriptions), return_exceptions=True
        )
        deliveries: list[Delivery] = []
        for batch in found:
            if isinstance(batch, (*_ERRORS,)):
                raise self._connection.down(words(batch)) from batch
            if isinstance(batch, BaseException):
                raise batch
            deliveries += [_delivery(message) for message in batch]
        return deliveries

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """See Subscriber."""
        try:
            for delivery in deliveries:
                message: Any = delivery.handle
                await message.ack()
            await self._connection.client.flush(round(_API_S))
        except _ERRORS as error:
            raise self._connection.down(words(error)) from error

    async def check(self) -> None:
        """See Subscriber: `receive` sees it."""

    async def close(self) -> None:
        """See Subscriber."""
        self._subscriptions.clear()
        await self._connection.close()


async def _fetch(subscription: JetStreamContext.PullSubscription, limit: int, wait_s: float) -> list[Msg]:
    try:
        return await subscription.fetch(limit, timeout=wait_s)
    except TimeoutError:  # nats.errors.TimeoutError is one
        return []


def _delivery(message: Msg) -> Delivery:
    place = message.metadata
    attributes, headers = split_headers(message.headers or {})
    return Delivery(
        topic=message.subject,
        body=message.data,
        attributes=attributes,
        headers=headers,
        handle=message,
        key=attributes.get("partitionkey"),
        event_id=attributes.get("id") or f"{place.stream}:{place.sequence.stream}",
    )


class NatsDriver:
    """See Driver."""

    def publisher(self, address: Address, *, source: str) -> NatsPublisher:
        """See Driver."""
        return NatsPublisher(address, source)

    def subscriber(self, address: Address, *, topics: Sequence[str], consumer: str) -> NatsSubscriber:
        """See Driver."""
        return NatsSubscriber(address, topics, consumer)


DRIVER: Final = NatsDriver()
