"""RabbitMQ: the event's topic is the routing key, with publisher confirms and persistent messages.

    amqp://user:password@host:5672/vhost?exchange=events&heartbeat=10        also amqps://

Without `exchange` the default one is used, where the routing key is a queue's name. A named exchange that is not
there is made, durable, of the type topic. A connection on which nothing came for three heartbeats (seconds, 10) is
given up. Published as mandatory: an event that no queue takes is that event's
fault, not lost. Consumed from one durable queue per consumer, bound to the exchange by the topics; or, without an
exchange, from the queues named by them.

Some events make the server close the channel, with all that is on its way: too large, a header that it reads
itself (CC, BCC), a routing key that the user may not write. It does not say which one. So the next ones go one at a
time, until the channel is closed over one that is alone: that one is refused.

Always true: an event counts as published when the broker confirmed it, and not when it was returned besides.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final
from zlib import crc32

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange, AbstractIncomingMessage
from aio_pika.exceptions import (
    AMQPChannelError,
    AMQPError,
    ChannelInvalidStateError,
    ChannelNotFoundEntity,
    DeliveryError,
    PublishError,
)

from supervisor.errors import BrokerRefused
from supervisor.outbox.driver import Address, Delivery, split_headers
from supervisor.outbox.event import BrokerDown, Event, EventRefused
from supervisor.release import VERSION

_CONNECT_S: Final = 5.0
_HEARTBEAT_S: Final = 10
_LONGEST_HEARTBEAT_S: Final = 3600
_SHORT_BYTES: Final = 255
_ONE_BY_ONE: Final = 2000
"""So many events after a channel was closed: more than can have been on their way, with some that came since."""
_ERRORS: Final = (AMQPError, ChannelInvalidStateError, OSError, TimeoutError, asyncio.CancelledError)
_TOO_BIG: Final = re.compile(r"message size \d+ .*?larger than (?:configured )?max size (\d+)")


class Connection:
    """A connection and one channel; not the client's robust kind, which hides outages."""

    def __init__(self, address: Address) -> None:
        self._address = address
        options = address.take("exchange", "heartbeat")
        self.exchange_name = options.get("exchange", "")
        self._heartbeat = options.get("heartbeat", str(_HEARTBEAT_S))
        if not (self._heartbeat.isdecimal() and 1 <= int(self._heartbeat) <= _LONGEST_HEARTBEAT_S):
            raise BrokerRefused(address.setting, f"heartbeat is a number of seconds, 1 to {_LONGEST_HEARTBEAT_S}")
        self._connection: AbstractConnection | None = None
        self.channel: AbstractChannel | None = None
        self.exchange: AbstractExchange | None = None

    async def connect(self, *, prefetch: int | None = None) -> None:
        """Connect to the first of the hosts that answers. Raises BrokerDown."""
        address, failures = self._address, []
        for host, port in address.hosts:
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await self._open(host, port, prefetch)
                return
            except (AMQPError, ChannelInvalidStateError, OSError, TimeoutError) as error:
                failures.append(words(error))
                await self.close()
        raise self.down("; ".join(dict.fromkeys(failures)))

    async def _open(self, host: str, port: int | None, prefetch: int | None) -> None:
        address = self._address
        secure = address.scheme == "amqps"
        self._connection = await aio_pika.connect(
            host=host,
            port=port or (5671 if secure else 5672),
            login=address.user or "guest",
            password=address.password or "guest",
            virtualhost=address.path.removeprefix("/") or "/",
            ssl=secure,
            timeout=_CONNECT_S,
            heartbeat=self._heartbeat,
            client_properties={"connection_name": f"pg-supervisor {VERSION}"},
        )
        self.channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
        if prefetch is not None:
            await self.channel.set_qos(prefetch_count=prefetch)
        if not self.exchange_name:
            self.exchange = self.channel.default_exchange
            return
        try:
            self.exchange = await self.channel.get_exchange(self.exchange_name, ensure=True)
        except ChannelNotFoundEntity:
            # The question has closed the channel.
            self.channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
            if prefetch is not None:
                await self.channel.set_qos(prefetch_count=prefetch)
            self.exchange = await self.channel.declare_exchange(
                self.exchange_name, aio_pika.ExchangeType.TOPIC, durable=True
            )

    @property
    def open(self) -> bool:
        """Whether it is connected, as far as the client knows."""
        connection, channel = self._connection, self.channel
        return connection is not None and not connection.is_closed and channel is not None and not channel.is_closed

    def down(self, why: str) -> BrokerDown:
        """The error for an outage."""
        return BrokerDown(f"{self._address.shown}: {why}")

    async def close(self) -> None:
        """Hang up."""
        connection, self._connection, self.channel, self.exchange = self._connection, None, None, None
        if connection is not None:
            try:
                async with asyncio.timeout(1.0):
                    await connection.close()
            except (AMQPError, ChannelInvalidStateError, OSError, TimeoutError):
                pass  # it is gone, which is what was wanted


class RabbitPublisher:
    """Publishes over one channel, any number at a time."""

    def __init__(self, address: Address, source: str) -> None:
        self._connection = Connection(address)
        self._source = source
        self._most: int | None = None
        """The server's largest message, once it has told it."""
        self._one_by_one = 0
        """So many events still go alone: one of those on their way together made the server close the channel."""
        self._turn = asyncio.Lock()

    async def connect(self) -> None:
        """See Publisher."""
        await self._connection.connect()

    async def check(self) -> None:
        """See Publisher."""
        if not self._connection.open:
            raise self._connection.down("not connected")

    async def publish(self, event: Event) -> None:
        """See Publisher."""
        if not self._one_by_one:
            await self._publish(event, alone=False)
            return
        async with self._turn:
            await self._publish(event, alone=True)
            self._one_by_one = max(0, self._one_by_one - 1)

    async def _publish(self, event: Event, *, alone: bool) -> None:
        exchange = self._connection.exchange
        if exchange is None or not self._connection.open:
            raise self._connection.down("not connected")
        if len(event.topic.encode()) > _SHORT_BYTES:
            raise EventRefused("its topic is longer than a routing key may be, 255 bytes")
        self._check_size(event)
        attributes = event.attributes(self._source)
        if len(attributes["datacontenttype"].encode()) > _SHORT_BYTES:
            raise EventRefused("its datacontenttype is longer than a content type may be, 255 bytes")
        headers: dict[str, Any] = dict(event.extras())
        for name, value in attributes.items():
            if name != "datacontenttype":
                headers[f"cloudEvents:{name}"] = value
        message = aio_pika.Message(
            event.body,
            headers=headers,
            content_type=attributes["datacontenttype"],
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            message_id=event.event_id,
            timestamp=datetime.fromtimestamp(event.created_at, UTC),
            type=attributes["type"].encode()[:_SHORT_BYTES].decode(errors="ignore"),  # a header has all of it
        )
        try:
            await exchange.publish(message, event.topic, mandatory=True)
        except PublishError:
            where = f"exchange {self._connection.exchange_name!r}" if self._connection.exchange_name else "no queue"
            raise EventRefused(
                f"no queue is bound to {where} for {event.topic!r}"
                if self._connection.exchange_name
                else f"there is no queue {event.topic!r}"
            ) from None
        except DeliveryError:
            raise EventRefused("RabbitMQ did not take it (nack)") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self._connection.down("connection lost") from None  # by the client, for want of a connection
        except (AMQPError, ChannelInvalidStateError, OSError) as error:
            if isinstance(error, AMQPChannelError):
                if told := _TOO_BIG.search(str(error)):
                    self._most = int(told[1])
                    self._check_size(event)
                elif alone:
                    self._one_by_one = 0
                    raise EventRefused(f"RabbitMQ closed the channel over it: {words(error)}") from error
                else:
                    self._one_by_one = _ONE_BY_ONE
            raise self._connection.down(words(error)) from error

    def _check_size(self, event: Event) -> None:
        if self._most is not None and len(event.body) > self._most:
            raise EventRefused(f"it has {len(event.body)} bytes, the server's max_message_size is {self._most}")

    async def close(self) -> None:
        """See Publisher."""
        await self._connection.close()


class RabbitSubscriber:
    """One durable queue bound to the exchange, or the queues named by the topics; acknowledged by hand."""

    def __init__(self, address: Address, topics: Sequence[str], consumer: str) -> None:
        self._connection = Connection(address)
        self._topics = topics
        self._consumer = consumer
        if len(consumer.encode()) > 200:
            raise BrokerRefused("SUPERVISOR_CONSUMER", "is too long for a queue's name")
        self._arrived: asyncio.Queue[AbstractIncomingMessage | None] = asyncio.Queue()

    async def connect(self) -> None:
        """See Subscriber."""
        self._arrived = asyncio.Queue()
        await self._connection.connect(prefetch=_PREFETCH)
        channel, exchange = self._connection.channel, self._connection.exchange
        assert channel is not None
        assert exchange is not None
        arrived = self._arrived
        channel.close_callbacks.add(lambda *_: arrived.put_nowait(None))
        try:
            if self._connection.exchange_name:
                queue = await channel.declare_queue(self._consumer, durable=True)
                for topic in self._topics:
                    await queue.bind(exchange, topic)
                queues = [queue]
            else:
                queues = [await channel.declare_queue(topic, durable=True) for topic in self._topics]
            for queue in queues:
                await queue.consume(arrived.put)
        except (AMQPError, ChannelInvalidStateError, OSError) as error:
            await self.close()
            raise self._connection.down(words(error)) from error

    async def receive(self, limit: int, wait_s: float) -> list[Delivery]:
        """See Subscriber."""
        found: list[AbstractIncomingMessage] = []
        try:
            async with asyncio.timeout(wait_s):
                found.append(self._there(await self._arrived.get()))
        except TimeoutError:
            return []
        while len(found) < limit and not self._arrived.empty():
            found.append(self._there(self._arrived.get_nowait()))
        return [_delivery(message) for message in found]

    def _there(self, message: AbstractIncomingMessage | None) -> AbstractIncomingMessage:
        if message is None:
            raise self._connection.down("connection lost")
        return message

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """See Subscriber."""
        try:
            for delivery in deliveries:
                message: Any = delivery.handle
                await message.ack()
        except _ERRORS as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            raise self._connection.down(words(error)) from error

    async def check(self) -> None:
        """See Subscriber: `receive` sees it."""

    async def close(self) -> None:
        """See Subscriber."""
        await self._connection.close()


_PREFETCH: Final = 1000


def _delivery(message: AbstractIncomingMessage) -> Delivery:
    attributes, headers = split_headers(message.headers or {})
    if message.content_type:
        attributes.setdefault("datacontenttype", message.content_type)
    body = message.body
    known_as = attributes.get("id") or message.message_id
    return Delivery(
        topic=message.routing_key or "",
        body=body,
        attributes=attributes,
        headers=headers,
        handle=message,
        key=attributes.get("partitionkey"),
        # Without any id nothing tells two of the same content from one delivered twice.
        event_id=known_as or f"crc32:{crc32(body):08x}:{len(body)}:{message.timestamp or ''}",
    )


def words(error: BaseException) -> str:
    """An error of the client in one line."""
    return (str(error).splitlines() or [""])[0] or type(error).__name__


class RabbitDriver:
    """See Driver."""

    def publisher(self, address: Address, *, source: str) -> RabbitPublisher:
        """See Driver."""
        return RabbitPublisher(address, source)

    def subscriber(self, address: Address, *, topics: Sequence[str], consumer: str) -> RabbitSubscriber:
        """See Driver."""
        return RabbitSubscriber(address, topics, consumer)


DRIVER: Final = RabbitDriver()
