"""The process of a relay or a consumer: started, told to stop, ended.

    supervisor relay, supervisor consume        alone (alone.py: with a health page)
    python -m supervisor.outbox                 a child of `supervisor run` (__main__.py)

    connect to the database, check the schema --> work --> SIGTERM, SIGINT or the parent's end --> drain --> exit

Always true: an address of a broker that cannot be used ends it at once (exit code 78); an unreachable database or
broker does not, they are waited for.

Elsewhere: what is done (relay.py, consume.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Final

from supervisor import exits
from supervisor.db import tend
from supervisor.db.link import DatabaseError, Link, first_line
from supervisor.db.migrate import check_version
from supervisor.errors import BrokerRefused, DatabaseUnavailable, SchemaMissing, SchemaTooNew
from supervisor.log import Repeats, get_logger
from supervisor.outbox.consume import Consumer
from supervisor.outbox.driver import Address, Publisher, Subscriber, find_driver
from supervisor.outbox.relay import Relay
from supervisor.settings import Settings

_MISSING: Final = ("42P01", "42703", "3F000")

log = get_logger("relay")


def make_publisher(settings: Settings) -> tuple[Publisher, str]:
    """The publisher to the broker of these settings, and its address to show. Raises BrokerRefused."""
    if settings.outbox_url is None:
        raise BrokerRefused("SUPERVISOR_OUTBOX_URL", "is not set: there is no broker to relay to")
    address = Address.parse(settings.outbox_url.get_secret_value(), "SUPERVISOR_OUTBOX_URL")
    return find_driver(address).publisher(address, source=settings.outbox_source), address.shown


def check_brokers(settings: Settings) -> None:
    """See that the brokers of *settings* can be used, before a service starts. Raises BrokerRefused."""
    if settings.outbox_url is not None:
        make_publisher(settings)
    if settings.consume_url is not None:
        make_subscriber(settings)


async def relay(
    settings: Settings,
    database_url: str,
    *,
    until: asyncio.Event | None = None,
    on_begun: Callable[[Relay], None] = lambda _: None,
) -> int:
    """Relay until told to stop; the exit code. Raises BrokerRefused, SchemaMissing."""
    publisher, shown = make_publisher(settings)
    made = Relay(settings, database_url, publisher, broker=shown)
    with stopping(until) as stop:
        await schema_ready(settings, database_url, stop)
        log.info("relay.starting", relay=made.lead.id, batch=settings.outbox_batch, lease_s=settings.outbox_lease_s)
        on_begun(made)
        return exits.OK if await made.run(stop) else exits.CUT


def make_subscriber(settings: Settings) -> Subscriber:
    """The subscriber to the broker of these settings. Raises BrokerRefused."""
    if settings.consume_url is None:
        raise BrokerRefused("SUPERVISOR_CONSUME_URL", "is not set: there is no broker to consume from")
    address = Address.parse(settings.consume_url.get_secret_value(), "SUPERVISOR_CONSUME_URL")
    topics = [topic for topic, _ in settings.consume]
    return find_driver(address).subscriber(address, topics=topics, consumer=settings.consumer)


async def consume(
    settings: Settings,
    database_url: str,
    *,
    until: asyncio.Event | None = None,
    on_begun: Callable[[Consumer], None] = lambda _: None,
) -> int:
    """Consume until told to stop; the exit code. Raises BrokerRefused, SchemaMissing."""
    made = Consumer(settings, database_url, make_subscriber(settings))
    with stopping(until) as stop:
        await schema_ready(settings, database_url, stop)
        log.info("consumer.starting", consumer=settings.consumer)
        on_begun(made)
        return exits.OK if await made.run(stop) else exits.CUT


@contextlib.contextmanager
def stopping(until: asyncio.Event | None) -> Iterator[asyncio.Event]:
    """An event that is set by SIGTERM, by SIGINT, or by *until*."""
    stop = asyncio.Event() if until is None else until
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def schema_ready(settings: Settings, database_url: str, stop: asyncio.Event) -> None:
    """Wait for the database, however long that takes, and see that the schema fits. Raises SchemaMissing."""
    link = Link(
        database_url,
        name="pg-supervisor relay start",
        statement_timeout_s=settings.statement_timeout_s,
        connect_timeout_s=settings.connect_timeout_s,
    )
    repeats, pause = Repeats(every_s=5.0), 0.1
    try:
        while not stop.is_set():
            try:
                found = await link.call(lambda conn: tend.version(conn, settings.schema_))
                try:
                    check_version(found, settings.schema_)
                except SchemaTooNew as error:
                    log.warning("schema.newer", reason=str(error), did="going on with what this release knows")
                return
            except (DatabaseUnavailable, DatabaseError) as error:
                if getattr(error, "sqlstate", None) in _MISSING:
                    raise SchemaMissing(settings.schema_) from error
                repeats.tell(log.warning, "relay.database_away", reason=first_line(error), did="waiting for it")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stop.wait()
            pause = min(2.0, pause * 2)
    finally:
        await link.close()
