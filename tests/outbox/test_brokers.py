"""What holds with every broker: JetStream, RabbitMQ and a server of Kafka's protocol."""

import json
import signal
from collections.abc import Callable
from typing import Any

from supervisor import NewEvent, publish, publish_many
from tests.support.arrivals import ground
from tests.support.brokers import Broker, Kafka, Rabbit
from tests.support.database import Database
from tests.support.relay import Role

Starter = Callable[..., Role]
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_events_arrive_once_in_order_per_key_as_cloud_events(
    db: Database, broker: Broker, name: str, role: Starter
) -> None:
    place = ground(broker, name)
    await place.open()
    conn = db.connect()
    given = publish(conn, place.topic, {"n": -1, "ü": "é"}, key="k0", headers={"traceparent": TRACE, "x": 7})
    publish_many(conn, [NewEvent(place.topic, {"n": n}, key=f"k{n % 10}" if n % 3 else None) for n in range(500)])
    relay = role("relay", outbox_url=place.url, outbox_source="/shop")
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 30)
    arrived = await place.arrived()
    assert sorted(one.payload["n"] for one in arrived) == list(range(-1, 500))
    for key in {one.key for one in arrived} - {None}:
        numbers = [one.payload["n"] for one in arrived if one.key == key]
        assert numbers == sorted(numbers), key
    [first] = [one for one in arrived if one.payload["n"] == -1]
    assert (first.event_id, first.key, first.payload["ü"]) == (str(given.event_id), "k0", "é")
    prefix = next(name for name in first.headers if name.lower().startswith("c") and name.endswith("specversion"))
    prefix = prefix.removesuffix("specversion")
    attributes = {name: first.headers[prefix + name] for name in ("specversion", "id", "type", "source")}
    assert attributes == {"specversion": "1.0", "id": str(given.event_id), "type": place.topic, "source": "/shop"}
    assert (first.headers["traceparent"], first.headers["x"]) == (TRACE, "7")
    assert relay.stop() == 0


async def test_an_outage_parks_nothing_and_everything_arrives_in_order(
    db: Database, broker: Broker, name: str, role: Starter
) -> None:
    place = ground(broker, name)
    await place.open()
    conn = db.connect()
    relay = role("relay", outbox_url=place.url, outbox_max_attempts=1, publish_timeout_s=5)
    publish(conn, place.topic, {"n": -1}, key="k")
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 30)
    broker.stop(signal.SIGKILL)
    publish_many(conn, [NewEvent(place.topic, {"n": n}, key="k" if n % 2 else None) for n in range(200)])
    relay.wait_event("broker.unreachable", 30)
    assert db.value("select count(*)::int from supervisor.outbox") == 200
    broker.start()
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 30)
    assert db.value("select count(*)::int from supervisor.outbox_parked") == 0
    arrived = await place.arrived()
    assert {one.payload["n"] for one in arrived} == set(range(-1, 200))
    keyed = list(dict.fromkeys(one.payload["n"] for one in arrived if one.key == "k"))
    assert keyed == sorted(keyed)


async def test_what_the_broker_refuses_is_parked_and_nothing_else_waits(
    db: Database, broker: Broker, name: str, role: Starter
) -> None:
    place = ground(broker, name)
    await place.open()
    conn = db.connect()
    refused = [NewEvent(f"nobody-{name}", {"n": 0})]
    said = {"nats": "no stream takes the subject", "amqp": "there is no queue", "kafka": "there is no topic"}
    scheme = place.url.partition(":")[0]
    if isinstance(broker, Rabbit):
        refused.append(NewEvent(place.topic, {"x": "x" * broker.max_message_size}))
    if isinstance(broker, Kafka):
        refused = [NewEvent("a b/ü", {})]  # this server makes any topic whose name is right
        said["kafka"] = "its topic is no Kafka topic"
    publish_many(conn, refused)
    publish_many(conn, [NewEvent(place.topic, {"n": n}) for n in range(100)])
    role("relay", outbox_url=place.url, outbox_max_attempts=2, retry_base_s=0.1)
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 30)
    errors = [row[0] for row in db.rows("select last_error from supervisor.outbox_parked order by id")]
    assert len(errors) == len(refused)
    assert errors[0].startswith(said[scheme]), errors
    if isinstance(broker, Rabbit):
        assert errors[1].endswith(f"the server's max_message_size is {broker.max_message_size}"), errors
    assert {one.payload["n"] for one in await place.arrived()} == set(range(100))


async def test_what_a_broker_would_hang_up_over_holds_up_nothing(
    db: Database, broker: Broker, name: str, role: Starter
) -> None:
    """Written past publish(), which refuses it. The events behind it arrive, and odd texts do where they can."""
    place = ground(broker, name)
    await place.open()
    conn = db.connect()
    bad: list[tuple[dict[str, Any], str]] = [
        ({"a\r\nb": "x"}, "a header's name is not 1 to 100 letters, digits"),
        ({"a(b)": "x"}, "a header's name is not"),
        ({"": "x"}, "a header's name is not"),
        ({"ce-": "x"}, "a header's name is not"),
        ({"n" * 101: "x"}, "a header's name is not"),
        ({f"h{n}": "x" * 1000 for n in range(300)}, "its headers have 301090 bytes, more than 65536"),
    ]
    odd: list[dict[str, Any]] = [
        {"v": {"a": [1, 2]}}, {"v": "a\r\nb: c"}, {"ce-type": "ü" * 200}, {"ce-id": "mine"}, {"ce-time": "never"},
        {f"h{n}": "x" * 1000 for n in range(64)},
    ]  # fmt: skip
    for headers in (*(headers for headers, _ in bad), *odd):
        conn.execute(
            "insert into supervisor.outbox (topic, payload, headers) values (%s, %s, %s)",
            [place.topic, json.dumps({"n": odd.index(headers) if headers in odd else -1}), json.dumps(headers)],
        )
    conn.execute(
        "insert into supervisor.outbox (topic, payload, key) values (%s, %s, %s)", [place.topic, '{"n": 99}', "a\nb"]
    )
    role("relay", outbox_url=place.url, outbox_max_attempts=1)
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 30)
    errors = [row[0] for row in db.rows("select last_error from supervisor.outbox_parked order by id")]
    assert len(errors) == len(bad), errors
    for error, (_, said) in zip(errors, bad, strict=True):
        assert error.startswith(said), (error, said)
    assert sorted(one.payload["n"] for one in await place.arrived()) == [*range(len(odd)), 99]


async def test_what_makes_the_server_close_the_channel_is_found_among_others(
    db: Database, rabbit_server: Rabbit, name: str, role: Starter
) -> None:
    """RabbitMQ reads the headers CC and BCC itself, and closes the channel over a text, whatever else is on its way."""
    rabbit_server.start()
    place = ground(rabbit_server, name)
    await place.open()
    events = [NewEvent(place.topic, {"n": n}, key=f"k{n % 5}") for n in range(300)]
    events[50:50] = [NewEvent(place.topic, {"n": -1}, headers={"CC": "x"}, key="bad")]
    events[200:200] = [NewEvent(place.topic, {"n": -2}, headers={"BCC": "x"})]
    publish_many(db.connect(), events)
    role("relay", outbox_url=place.url, outbox_max_attempts=2, retry_base_s=0.1)
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 30)
    parked = db.rows("select attempts, payload ->> 'n', last_error from supervisor.outbox_parked order by id")
    assert [row[:2] for row in parked] == [(2, "-1"), (2, "-2")]
    assert all(row[2].startswith("RabbitMQ closed the channel over it: PRECONDITION_FAILED") for row in parked)
    arrived = await place.arrived()
    assert {one.payload["n"] for one in arrived} == set(range(300))
    for key in {one.key for one in arrived}:
        numbers = list(dict.fromkeys(one.payload["n"] for one in arrived if one.key == key))
        assert numbers == sorted(numbers), key
