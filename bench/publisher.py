"""A bare publisher: the broker's client in a loop, so many CloudEvents on their way, each confirmed; no database.

`python -m bench.publisher nats nats://127.0.0.1:4222 20000 500 200` prints events a second.
"""

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import aio_pika
import nats
import uvloop
from nats.js.api import StreamConfig

Send = Callable[[bytes], Awaitable[object]]


async def make_topic(name: str, broker: str, topic: str) -> None:
    """Where events go: a stream, or a queue."""
    if name == "nats":
        client = await nats.connect(broker)
        await client.jetstream().add_stream(StreamConfig(name=topic, subjects=[topic]))
        await client.close()
        return
    connection = await aio_pika.connect(broker)
    async with connection:
        await (await connection.channel()).declare_queue(topic, durable=True)


def _attributes() -> dict[str, str]:
    """What a CloudEvent carries: the same bytes go to the broker as from a relay."""
    return {
        "specversion": "1.0",
        "id": str(uuid.uuid4()),
        "type": "bench",
        "source": "/pg-supervisor",
        "time": datetime.now(UTC).isoformat(),
        "datacontenttype": "application/json",
        "partitionkey": "k1",
    }


async def _publish(send: Send, count: int, batch: int, size: int) -> float:
    body = json.dumps({"n": 1, "x": "x" * size}).encode()
    left = count

    async def one() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await send(body)

    began = time.monotonic()
    await asyncio.gather(*(one() for _ in range(batch)))
    return count / (time.monotonic() - began)


async def _main(name: str, broker: str, count: int, batch: int, size: int) -> float:
    if name == "nats":
        client = await nats.connect(broker)
        js = client.jetstream(publish_async_max_pending=batch)

        async def send(body: bytes) -> object:
            headers = {f"ce-{word}": value for word, value in _attributes().items()}
            headers["Nats-Msg-Id"] = headers["ce-id"]
            return await (await js.publish_async("bench", body, headers=headers))

        rate = await _publish(send, count, batch, size)
        await client.close()
        return rate
    connection = await aio_pika.connect(broker)
    async with connection:
        channel = await connection.channel(publisher_confirms=True)

        async def put(body: bytes) -> object:
            headers: dict[str, Any] = {f"cloudEvents:{word}": value for word, value in _attributes().items()}
            message = aio_pika.Message(body, headers=headers, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            return await channel.default_exchange.publish(message, "bench")

        return await _publish(put, count, batch, size)


if __name__ == "__main__":
    kind, address, *numbers = sys.argv[1:]
    print(uvloop.run(_main(kind, address, *map(int, numbers))))
