"""Kafka: an idempotent producer, acknowledged by all in-sync replicas, with the event's key as partition key.

    kafka://user:password@host:9092,host2:9092?security=SASL_SSL&mechanism=PLAIN

Options: security (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL), mechanism (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512), cafile.
Topics are made by whoever owns them, or by the servers where they are so set. Consumed as a group; offsets are
committed once the events are stored.

Two clients, each for what it is good at: the producer is librdkafka's (confluent-kafka), whose sequence numbers keep
order and drop what it sends again, at the price of a thread; the consumer is aiokafka's, which lives on the loop.

Always true: an event counts as published when all in-sync replicas have it. A producer that is given up is emptied
first: what it had not sent it never sends. What another producer sends again has the same `ce_id`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import threading
from collections.abc import Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka import errors as kafka_errors
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from supervisor.errors import BrokerRefused
from supervisor.outbox.driver import Address, Delivery, split_headers
from supervisor.outbox.event import BrokerDown, Event, EventRefused
from supervisor.release import VERSION

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_REQUEST_MS: Final = 8000
_CONNECT_S: Final = 5.0
_CHECK_S: Final = 3.0
_POLL_S: Final = 0.05
_MOST_BYTES: Final = 64 << 20
_REFUSALS: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)


def _security(address: Address) -> tuple[str, str, str | None]:
    """(security, mechanism, cafile) of the address's options. Raises BrokerRefused."""
    given = address.take("security", "mechanism", "cafile")
    security = given.get("security", "SASL_PLAINTEXT" if address.password else "PLAINTEXT").upper()
    if security not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
        raise BrokerRefused(address.setting, "security is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL")
    mechanism = given.get("mechanism", "PLAIN").upper()
    if mechanism not in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        raise BrokerRefused(address.setting, "mechanism is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
    return security, mechanism, given.get("cafile")


def _servers(address: Address) -> list[str]:
    return [f"{host}:{port or 9092}" for host, port in address.hosts]


class KafkaPublisher:
    """Publishes by one idempotent producer; a thread carries its answers to the loop."""

    def __init__(self, address: Address, source: str) -> None:
        self._shown = address.shown
        self._source = source
        security, mechanism, cafile = _security(address)
        self._config: dict[str, Any] = {
            "bootstrap.servers": ",".join(_servers(address)),
            "client.id": f"pg-supervisor-{VERSION}",
            "security.protocol": security,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 2,
            "message.max.bytes": _MOST_BYTES,
            "message.timeout.ms": _REQUEST_MS,
            "request.timeout.ms": _REQUEST_MS // 2,
            "socket.timeout.ms": _REQUEST_MS,
            # So long a topic may be unknown before an event for it is refused.
            "topic.metadata.propagation.max.ms": 3000,
            "reconnect.backoff.max.ms": 1000,
            "log_level": 4,
            "error_cb": self._told,
        }
        if security.startswith("SASL"):
            self._config |= {
                "sasl.mechanism": mechanism,
                "sasl.username": address.user or "",
                "sasl.password": address.password or "",
            }
        if cafile:
            self._config["ssl.ca.location"] = cafile
        self._producer: Producer | None = None
        self._poller: threading.Thread | None = None
        self._closing = threading.Event()
        self._lost: str | None = None
        """Why no broker of the cluster can be reached, as the client says."""

    async def connect(self) -> None:
        """See Publisher."""
        try:
            self._lost = None
            # Its own lines would go to stderr as they are, past the log's format and its mask.
            producer = Producer(self._config, logger=logging.getLogger("librdkafka"))
            await asyncio.to_thread(producer.list_topics, timeout=_CONNECT_S)
        except KafkaException as error:
            raise BrokerDown(f"{self._shown}: {words(error)}") from error
        self._closing = threading.Event()
        self._producer = producer
        self._poller = threading.Thread(target=_poll, args=(producer, self._closing), name="kafka", daemon=True)
        self._poller.start()

    def _told(self, error: KafkaError) -> None:
        """Called by the client, in its thread."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._lost = error.str()

    async def check(self) -> None:
        """See Publisher."""
        if self._producer is None or self._lost is not None:
            raise BrokerDown(f"{self._shown}: {self._lost or 'not connected'}")

    async def publish(self, event: Event) -> None:
        """See Publisher."""
        producer = self._producer
        if producer is None:
            raise BrokerDown(f"{self._shown}: not connected")
        if not _TOPIC.fullmatch(event.topic) or event.topic in (".", ".."):
            raise EventRefused("its topic is no Kafka topic: 1 to 249 of A-Z a-z 0-9 . _ -")
        headers: list[tuple[str, str | bytes | None]] = [
            (name, value.encode()) for name, value in event.extras().items()
        ]
        for name, value in event.attributes(self._source).items():
            headers.append(("content-type" if name == "datacontenttype" else f"ce_{name}", value.encode()))
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[KafkaError | None] = loop.create_future()

        def answered(error: KafkaError | None, _: Message) -> None:
            loop.call_soon_threadsafe(_settle, answer, error)

        try:
            producer.produce(
                event.topic,
                event.body,
                key=None if event.key is None else event.key.encode(),
                headers=headers,
                timestamp=int(event.created_at * 1000),
                on_delivery=answered,
            )
        except BufferError:
            raise BrokerDown(f"{self._shown}: the client's queue is full") from None
        except KafkaException as error:
            self._judge(error.args[0])
        refusal = await answer
        if refusal is not None:
            self._judge(refusal)

    def _judge(self, error: KafkaError) -> None:
        """Raise what *error* means for its event."""
        if error.code() in _REFUSALS:
            raise EventRefused(f"Kafka refused it: {error.str()}")
        if error.code() == KafkaError._MSG_TIMED_OUT:  # perhaps one partition that has no leader
            raise TimeoutError(f"no confirmation within {_REQUEST_MS // 1000} s")
        raise BrokerDown(f"{self._shown}: {error.str()}")

    async def close(self) -> None:
        """See Publisher."""
        producer, self._producer = self._producer, None
        if producer is not None:
            self._closing.set()
            await asyncio.to_thread(self._empty, producer)

    def _empty(self, producer: Producer) -> None:
        if self._poller is not None:
            self._poller.join()
        # Nothing of it may be sent once another producer has begun; whoever waits for it is told.
        producer.purge(in_queue=True, in_flight=True, blocking=True)
        producer.flush(1.0)


def _poll(producer: Producer, closing: threading.Event) -> None:
    while not closing.is_set():
        producer.poll(_POLL_S)


def _settle(answer: asyncio.Future[KafkaError | None], error: KafkaError | None) -> None:
    if not answer.done():
        answer.set_result(error)


class KafkaSubscriber:
    """A member of the consumer's group; offsets are committed by `ack`."""

    def __init__(self, address: Address, topics: Sequence[str], consumer: str) -> None:
        for topic in topics:
            if not _TOPIC.fullmatch(topic):
                raise BrokerRefused("SUPERVISOR_CONSUME", f"{topic!r} is no Kafka topic (wildcards are not known)")
        self._shown = address.shown
        security, mechanism, cafile = _security(address)
        self._options: dict[str, Any] = {
            "bootstrap_servers": _servers(address),
            "client_id": f"pg-supervisor-{VERSION}",
            "security_protocol": security,
            "request_timeout_ms": _REQUEST_MS,
        }
        if security.startswith("SASL"):
            self._options |= {
                "sasl_mechanism": mechanism,
                "sasl_plain_username": address.user or "",
                "sasl_plain_password": address.password or "",
            }
        if security.endswith("SSL"):
            try:
                self._options["ssl_context"] = ssl.create_default_context(cafile=cafile)
            except OSError as error:
                raise BrokerRefused(address.setting, f"cafile cannot be read: {error.strerror}") from None
        self._topics = topics
        self._group = consumer
        self._consumer: Any = None

    async def connect(self) -> None:
        """See Subscriber."""
        consumer = AIOKafkaConsumer(
            *self._topics,
            group_id=self._group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=_MOST_BYTES,
            **self._options,
        )
        # Known from the start: given up in the middle, it would go on as a member of the group, and hold its share.
        self._consumer = consumer
        try:
            await consumer.start()
        except (kafka_errors.KafkaError, OSError) as error:
            await self.close()
            raise BrokerDown(f"{self._shown}: {words(error)}") from error

    async def receive(self, limit: int, wait_s: float) -> list[Delivery]:
        """See Subscriber."""
        if self._consumer is None:
            raise BrokerDown(f"{self._shown}: not connected")
        try:
            found = await self._consumer.getmany(timeout_ms=int(wait_s * 1000), max_records=limit)
        except (kafka_errors.KafkaError, OSError) as error:
            raise BrokerDown(f"{self._shown}: {words(error)}") from error
        return [_delivery(record) for records in found.values() for record in records]

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """See Subscriber."""
        offsets: dict[TopicPartition, int] = {}
        for delivery in deliveries:
            record: Any = delivery.handle
            place = TopicPartition(record.topic, record.partition)
            offsets[place] = max(record.offset + 1, offsets.get(place, 0))
        try:
            await self._consumer.commit(offsets)
        except (kafka_errors.KafkaError, OSError) as error:
            raise BrokerDown(f"{self._shown}: {words(error)}") from error

    async def check(self) -> None:
        """See Subscriber: the client connects again by itself, and says nothing meanwhile."""
        consumer = self._consumer
        if consumer is None:
            raise BrokerDown(f"{self._shown}: not connected")
        places = consumer.assignment() or {TopicPartition(self._topics[0], 0)}
        try:
            async with asyncio.timeout(_CHECK_S):
                await consumer.end_offsets(places)
        except (kafka_errors.KafkaError, OSError, TimeoutError) as error:
            reason = words(error) if str(error) else f"no answer within {_CHECK_S:g} s"
            raise BrokerDown(f"{self._shown}: {reason}") from error

    async def close(self) -> None:
        """See Subscriber."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await _stopped(consumer)


async def _stopped(client: Any) -> None:
    """Stop a client that may have lost its servers: it would flush, or say goodbye, without end."""
    try:
        async with asyncio.timeout(1.0):
            await client.stop()
    except (kafka_errors.KafkaError, OSError, TimeoutError):
        pass  # it is gone, which is what was wanted


def _delivery(record: Any) -> Delivery:
    attributes, headers = split_headers(dict(record.headers))
    key = record.key.decode(errors="replace") if record.key is not None else None
    return Delivery(
        topic=record.topic,
        body=record.value or b"",
        attributes=attributes,
        headers=headers,
        handle=record,
        key=attributes.get("partitionkey", key),
        event_id=attributes.get("id") or f"{record.topic}/{record.partition}/{record.offset}",
    )


def words(error: BaseException) -> str:
    """An error of the client in one line."""
    return (str(error).splitlines() or [""])[0] or type(error).__name__


class KafkaDriver:
    """See Driver."""

    def publisher(self, address: Address, *, source: str) -> KafkaPublisher:
        """See Driver."""
        return KafkaPublisher(address, source)

    def subscriber(self, address: Address, *, topics: Sequence[str], consumer: str) -> KafkaSubscriber:
        """See Driver."""
        return KafkaSubscriber(address, topics, consumer)


DRIVER: Final = KafkaDriver()
