"""Addresses of brokers and their drivers: what cannot be used is refused in words, without the password."""

import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from supervisor.errors import BrokerRefused
from supervisor.outbox import driver
from supervisor.outbox.driver import Address, find_driver

WHERE = "SUPERVISOR_OUTBOX_URL"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("127.0.0.1:4222", "has no scheme"),
        ("nats://user:s3cr3tword@:4222", "names no host"),
        ("nats://user:s3cr3tword@h:port", "has a port that is no number"),
        ("nats://user:s3cr3tword@[::1/", "is not a URL"),
        (
            "mqtt://user:s3cr3tword@h",
            "has the scheme 'mqtt', for which there is no driver; there are: amqp, amqps, kafka",
        ),
        ("nats://user:s3cr3tword@h/?tls=1", "has the option 'tls', which nats does not"),
        ("amqp://user:s3cr3tword@h/?heartbeat=soon", "heartbeat is a number of seconds, 1 to 3600"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_its_password(url: str, said: str) -> None:
    with pytest.raises(BrokerRefused) as refused:
        address = Address.parse(url, WHERE)
        find_driver(address).publisher(address, source="/s")
    assert str(refused.value).startswith(f"{WHERE} refused: {said}")
    assert "s3cr3tword" not in str(refused.value)


def test_an_address_in_parts() -> None:
    found = Address.parse("nats://us%40er:p%3Aw@a:1,b,[::1]:3/v%2Fh?x=1", WHERE)
    assert found.hosts == (("a", 1), ("b", None), ("::1", 3))
    assert (found.user, found.password, found.path, dict(found.options)) == ("us@er", "p:w", "/v/h", {"x": "1"})
    assert found.shown == "nats://a:1,b,::1:3/v/h"
    assert "p:w" not in repr(found)


def test_a_missing_extra_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nats", None)
    for loaded in [name for name in sys.modules if name.startswith("supervisor.outbox.brokers.nats")]:
        monkeypatch.delitem(sys.modules, loaded)
    with pytest.raises(BrokerRefused, match=r'pip install "pg-supervisor\[nats\]"'):
        find_driver(Address.parse("nats://h", WHERE))


class _Other:
    def publisher(self, address: Address, *, source: str) -> Any:
        return address.scheme, source

    def subscriber(self, address: Address, *, topics: Any, consumer: str) -> Any:
        return None


OTHER = _Other()
NONE = object()


def test_another_broker_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    def points(*, group: str) -> list[EntryPoint]:
        assert group == "supervisor.brokers"
        return [
            EntryPoint("other", f"{__name__}:OTHER", group),
            EntryPoint("none", f"{__name__}:NONE", group),
            EntryPoint("gone", "no.such.module:X", group),
        ]

    monkeypatch.setitem(sys.modules, __name__, sys.modules[_Other.__module__])
    monkeypatch.setattr(driver, "entry_points", points)
    address = Address.parse("other://h", WHERE)
    made: Any = find_driver(address).publisher(address, source="/s")
    assert made == ("other", "/s")
    with pytest.raises(BrokerRefused, match="is no driver"):
        find_driver(Address.parse("none://h", WHERE))
    with pytest.raises(BrokerRefused, match="cannot be imported"):
        find_driver(Address.parse("gone://h", WHERE))
