"""What a broker has to offer, and finding the one that an address names.

A driver is an object with the two methods of `Driver`, found by its address's scheme: the three that come with
this package, or an entry point of the group `supervisor.brokers` whose name is the scheme:

    [project.entry-points."supervisor.brokers"]
    pulsar = "our_brokers.pulsar:DRIVER"

    scheme://user:password@host:port,host:port/path?option=value --Address--> driver --> Publisher, Subscriber

Always true: no error here quotes a user's password; an address that cannot be used is refused at the start, with
what to do.

Elsewhere: the drivers (brokers/); who uses them (relay.py, consume.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final, Protocol, cast, runtime_checkable
from urllib.parse import parse_qsl, unquote

from supervisor import dsn
from supervisor.errors import BrokerRefused
from supervisor.outbox.event import Event

GROUP: Final = "supervisor.brokers"

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")

_PREFIXES: Final = ("ce-", "ce_", "cloudevents:", "cloudevents_")
_BUILT_IN: Final[dict[str, tuple[str, str, tuple[str, ...]]]] = {
    # scheme: (module, extra, what is imported)
    "nats": ("supervisor.outbox.brokers.nats", "nats", ("nats",)),
    "tls": ("supervisor.outbox.brokers.nats", "nats", ("nats",)),
    "amqp": ("supervisor.outbox.brokers.rabbitmq", "rabbitmq", ("aio_pika",)),
    "amqps": ("supervisor.outbox.brokers.rabbitmq", "rabbitmq", ("aio_pika",)),
    "kafka": ("supervisor.outbox.brokers.kafka", "kafka", ("aiokafka", "confluent_kafka")),
}


@dataclass(frozen=True, slots=True)
class Address:
    """A broker's address in parts.

    Attributes:
        hosts: (host, port) of each server named; port is None when it was not given.
        setting: The variable it came from, for complaints.
    """

    text: str = field(repr=False)
    scheme: str
    hosts: tuple[tuple[str, int | None], ...]
    user: str | None
    password: str | None = field(repr=False)
    path: str
    options: Mapping[str, str]
    setting: str

    @classmethod
    def parse(cls, text: str, setting: str) -> Address:
        """*text* in parts; its password is hidden from everything that is logged from now on.

        Raises:
            BrokerRefused: it is not an address.
        """
        if "://" not in text:
            raise BrokerRefused(setting, "has no scheme; give nats://host:4222, amqp://user:password@host, ...")
        try:
            scheme, place, path, query = _parts(text.strip())
            hosts = tuple(_host(part) for part in place.rpartition("@")[2].split(","))
        except ValueError as error:
            reason = "has a port that is no number" if "invalid literal" in str(error) else "is not a URL"
            raise BrokerRefused(setting, f"{reason} (are reserved characters of the password %-encoded?)") from None
        if not all(host for host, _ in hosts):
            raise BrokerRefused(setting, "names no host")
        user, password = _login(place)
        if password:
            dsn.remember(dsn.Address("", secrets=(password,)))
        return cls(
            text=text.strip(),
            scheme=scheme.lower(),
            hosts=hosts,
            user=user,
            password=password,
            path=unquote(path),
            options=dict(parse_qsl(query)),
            setting=setting,
        )

    @property
    def shown(self) -> str:
        """The address without user, password and options."""
        hosts = ",".join(host if port is None else f"{host}:{port}" for host, port in self.hosts)
        return f"{self.scheme}://{hosts}{self.path if self.path != '/' else ''}"

    def take(self, *names: str) -> dict[str, str]:
        """The options by these names; BrokerRefused when there are others."""
        strangers = sorted(self.options.keys() - set(names))
        if strangers:
            known = f"it knows {', '.join(names)}" if names else "it knows none"
            raise BrokerRefused(self.setting, f"has the option {strangers[0]!r}, which {self.scheme} does not: {known}")
        return dict(self.options)


class Publisher(Protocol):
    """One connection to a broker, for publishing."""

    async def connect(self) -> None:
        """Connect, and see that the broker can take events. Called again after `close`. Raises BrokerDown."""

    async def publish(self, event: Event) -> None:
        """Send *event* and return when the broker has it for good. Many at a time; no order among them.

        Raises:
            EventRefused: it will not have this one; others may well pass.
            BrokerDown: nothing passes at the moment.
            TimeoutError: no answer for this one; whether others pass is for the relay to see.
        """

    async def check(self) -> None:
        """See whether the connection still holds; asked about each second while nothing is sent. Raises BrokerDown."""

    async def close(self) -> None:
        """Hang up; publishes under way end with BrokerDown."""


@dataclass(slots=True, eq=False)
class Delivery:
    """One event as a broker delivered it.

    Attributes:
        attributes: Of CloudEvents, by their names; empty for what is none.
        handle: The driver's own, for `ack`.
    """

    topic: str
    body: bytes = field(repr=False)
    attributes: dict[str, str]
    headers: dict[str, str]
    handle: object = field(repr=False)
    key: str | None = None
    event_id: str = ""
    """`attributes["id"]`, or what else is the same each time it is delivered."""


class Subscriber(Protocol):
    """One subscription of a consumer to topics."""

    async def connect(self) -> None:
        """Connect and subscribe. Called again after `close`. Raises BrokerDown."""

    async def receive(self, limit: int, wait_s: float) -> list[Delivery]:
        """Up to *limit* events; none when none came within *wait_s*. Raises BrokerDown."""

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """They are stored: never deliver them again. Raises BrokerDown: then they may come again."""

    async def check(self) -> None:
        """See whether the broker is there, where `receive` does not; asked after one that found nothing.

        Raises BrokerDown, which is only shown: a client that connects by itself goes on.
        """

    async def close(self) -> None:
        """Hang up; what was not acknowledged is delivered again."""


@runtime_checkable
class Driver(Protocol):
    """One kind of broker."""

    def publisher(self, address: Address, *, source: str) -> Publisher:
        """For publishing; *source* is CloudEvents' attribute of that name. Raises BrokerRefused."""

    def subscriber(self, address: Address, *, topics: Sequence[str], consumer: str) -> Subscriber:
        """For consuming *topics* as *consumer*; those of one name share the events. Raises BrokerRefused."""


def split_headers(given: Mapping[str, object]) -> tuple[dict[str, str], dict[str, str]]:
    """The attributes of CloudEvents among a delivery's headers, however they are prefixed, and the others."""
    attributes: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, value in given.items():
        text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        lowered = name.lower()
        prefix = next((prefix for prefix in _PREFIXES if lowered.startswith(prefix)), None)
        if prefix is not None:
            attributes[lowered[len(prefix) :]] = text
        elif lowered == "content-type":
            attributes["datacontenttype"] = text
        else:
            others[name] = text
    return attributes, others


def find_driver(address: Address) -> Driver:
    """The driver of the address's scheme.

    Raises:
        BrokerRefused: there is none, or what it needs is not installed.
    """
    scheme = address.scheme
    if scheme in _BUILT_IN:
        module, extra, needed = _BUILT_IN[scheme]
        try:
            return cast("Driver", import_module(module).DRIVER)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in needed:
                raise
            remedy = f'pip install "pg-supervisor[{extra}]"'
            raise BrokerRefused(address.setting, f"{scheme}:// needs a package that is not there: {remedy}") from None
    found = [point for point in entry_points(group=GROUP) if point.name == scheme]
    if not found:
        others = {point.name for point in entry_points(group=GROUP)}
        known = ", ".join(sorted(_BUILT_IN.keys() | others))
        raise BrokerRefused(
            address.setting, f"has the scheme {scheme!r}, for which there is no driver; there are: {known}"
        )
    try:
        driver = found[0].load()
    except Exception as error:
        raise BrokerRefused(
            address.setting, f"the driver of {scheme}:// ({found[0].value}) cannot be imported: {error!r}"
        ) from error
    if not isinstance(driver, Driver):
        raise BrokerRefused(address.setting, f"{found[0].value} is no driver: it lacks publisher() or subscriber()")
    return driver


def _parts(text: str) -> tuple[str, str, str, str]:
    """Scheme, logins and hosts, path, query. Not urllib's: it knows one host, and refuses several with brackets."""
    scheme, _, rest = text.partition("#")[0].partition("://")
    if not _SCHEME.fullmatch(scheme):
        raise ValueError("no scheme")
    rest, _, query = rest.partition("?")
    place, slash, path = rest.partition("/")
    return scheme, place, slash + path, query


def _host(text: str) -> tuple[str, int | None]:
    if text.startswith("["):
        name, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ValueError("brackets")
        return name, int(rest[1:]) if rest.startswith(":") else None
    name, colon, port = text.partition(":")
    return name, int(port) if colon else None


def _login(place: str) -> tuple[str | None, str | None]:
    login = place.rpartition("@")[0]
    if not login:
        return None, None
    user, colon, password = login.partition(":")
    return unquote(user) or None, unquote(password) if colon else None
