"""Topics on real brokers, and everything that arrived there, in the broker's order.

ground(broker, name)     a topic of its own: `topic` to publish to; `url` for the relay
  .open()                make it; before anything is published
  .arrived()             (event id, key, payload) of every delivery since, duplicates included
"""

import asyncio
import json
from typing import Any, NamedTuple

import aio_pika
import nats as nats_client
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from nats.js.api import StreamConfig

from tests.support.brokers import Broker, Kafka, Nats, Rabbit


class Arrival(NamedTuple):
    """One event as it lies at the broker."""

    event_id: str
    key: str | None
    payload: dict[str, Any]
    headers: dict[str, str]


class Ground:
    """A topic on a broker."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker = broker
        self.name = name
        self.topic = name
        self.url = broker.url

    async def open(self) -> None:
        raise NotImplementedError

    async def arrived(self) -> list[Arrival]:
        raise NotImplementedError


class NatsGround(Ground):
    """A stream. Its duplicate window is short where duplicates are to be seen."""

    window_s = 120.0

    async def open(self) -> None:
        client = await nats_client.connect(self.url)
        config = StreamConfig(name=self.name, subjects=[self.name], duplicate_window=self.window_s)
        await client.jetstream().add_stream(config)
        await client.close()

    async def arrived(self) -> list[Arrival]:
        client = await nats_client.connect(self.url)
        js = client.jetstream()
        found: list[Arrival] = []
        try:
            count = (await js.stream_info(self.name)).state.messages
            if count:
                sub = await js.subscribe(self.name, ordered_consumer=True)
                for _ in range(count):
                    one = await sub.next_msg(timeout=20)
                    headers = dict(one.headers or {})
                    found.append(
                        Arrival(headers["ce-id"], headers.get("ce-partitionkey"), json.loads(one.data), headers)
                    )
        finally:
            await client.close()
        return found


class RabbitGround(Ground):
    """A queue under the default exchange; what is read stays read."""

    def __init__(self, broker: Broker, name: str) -> None:
        super().__init__(broker, name)
        self._read: list[Arrival] = []

    async def open(self) -> None:
        connection = await aio_pika.connect(self.url)
        async with connection:
            await (await connection.channel()).declare_queue(self.name, durable=True)

    async def arrived(self) -> list[Arrival]:
        connection = await aio_pika.connect(self.url)
        async with connection:
            queue = await (await connection.channel()).get_queue(self.name)
            while (one := await queue.get(fail=False, no_ack=True)) is not None:
                headers = {name: str(value) for name, value in one.headers.items()}
                self._read.append(
                    Arrival(
                        headers["cloudEvents:id"],
                        headers.get("cloudEvents:partitionkey"),
                        json.loads(one.body),
                        headers | {"message_id": str(one.message_id), "delivery_mode": str(int(one.delivery_mode))},
                    )
                )
        return self._read


class KafkaGround(Ground):
    """A topic of three partitions."""

    partitions = 3

    async def open(self) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=f"127.0.0.1:{self.broker.port}")
        await admin.start()
        try:
            await admin.create_topics([NewTopic(self.name, self.partitions, 1)])
        finally:
            await admin.close()

    async def arrived(self) -> list[Arrival]:
        places = [TopicPartition(self.name, number) for number in range(self.partitions)]
        consumer = AIOKafkaConsumer(bootstrap_servers=f"127.0.0.1:{self.broker.port}", enable_auto_commit=False)
        await consumer.start()
        found: list[Arrival] = []
        try:
            consumer.assign(places)
            ends = await consumer.end_offsets(places)
            await consumer.seek_to_beginning(*places)
            left = {place for place in places if ends[place] > 0}
            async with asyncio.timeout(60):
                while left:
                    batches = await consumer.getmany(*left, timeout_ms=500)
                    for place, records in batches.items():
                        for one in records:
                            headers = {name: value.decode() for name, value in one.headers}
                            key = None if one.key is None else one.key.decode()
                            found.append(Arrival(headers["ce_id"], key, json.loads(one.value), headers))
                            if one.offset + 1 >= ends[place]:
                                left.discard(place)
        finally:
            await consumer.stop()
        return found


def ground(broker: Broker, name: str) -> Ground:
    """A topic on *broker*."""
    kinds: dict[type[Any], type[Ground]] = {Nats: NatsGround, Rabbit: RabbitGround, Kafka: KafkaGround}
    return kinds[type(broker)](broker, name)
