"""The consume role with every broker: each event becomes one job, whatever is delivered twice; poison is kept aside."""

import json
from collections.abc import Callable

import aio_pika
import nats as nats_client
import pytest

from supervisor import NewEvent, publish, publish_many
from supervisor.outbox.consume import matches
from tests.support.arrivals import ground
from tests.support.brokers import Broker, Kafka, Nats, Rabbit
from tests.support.database import Database
from tests.support.relay import Role

Starter = Callable[..., Role]


async def test_each_event_becomes_one_job_though_the_consumer_is_killed(
    db: Database, broker: Broker, name: str, role: Starter
) -> None:
    """End to end, with a SIGKILL of the consumer in the middle: by count, and with the event in the job's headers."""
    place = ground(broker, name)
    await place.open()
    conn = db.connect()
    given = publish(conn, place.topic, {"n": -1}, key="k", headers={"traceparent": "00-a-b-01"})
    publish_many(conn, [NewEvent(place.topic, {"n": n}) for n in range(400)])
    role("relay", outbox_url=place.url)
    settings = {"consume_url": place.url, "consume": f"{place.topic}=order.created", "consumer": f"c-{name}"}
    first = role("consume", **settings, outbox_batch=20)
    db.wait_for("select count(*) > 50 from supervisor.job", True, 40)
    if isinstance(broker, Kafka):
        first.stop()  # a member that dies is in the group for as long as its session, and with this server for good
    else:
        first.kill9()
    second = role("consume", **settings)
    second.wait_event("broker.connected", 30)
    db.wait_for("select count(*)::int from supervisor.job", 401, 60)
    assert db.value("select count(distinct payload ->> 'n')::int from supervisor.job") == 401
    kind, payload, headers = db.rows(
        "select kind, payload, headers from supervisor.job where payload ->> 'n' = '-1'"
    )[0]  # fmt: skip
    assert (kind, payload, headers["traceparent"]) == ("order.created", {"n": -1}, "00-a-b-01")
    event = headers["event"]
    assert (event["id"], event["topic"], event["key"], event["type"]) == (
        str(given.event_id), place.topic, "k", place.topic,
    )  # fmt: skip
    assert db.value("select count(*)::int from supervisor.inbox where consumer = %s", [f"c-{name}"]) == 401
    assert second.stop() == 0


async def test_an_event_published_twice_is_one_job(db: Database, nats: Nats, name: str, role: Starter) -> None:
    """Two rows of one event id, as after a relay's death."""
    place = ground(nats, name)
    await place.open()
    conn = db.connect()
    first = publish(conn, place.topic, {"n": 1})
    role("relay", outbox_url=place.url)
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 30)
    publish(conn, place.topic, {"n": 1}, event_id=first.event_id)
    last = publish(conn, place.topic, {"n": 2})
    role("consume", consume_url=place.url, consume=f"{place.topic}=k", consumer=f"c-{name}")
    db.wait_for("select count(*)::int from supervisor.inbox where event_id = %s", 1, 40, [str(last.event_id)])
    db.wait_for("select count(*)::int from supervisor.job", 2, 10)


async def test_poison_is_parked_and_not_delivered_again(db: Database, nats: Nats, name: str, role: Starter) -> None:
    """Not JSON, no object, NUL in a text, headers too large: each is in a table with its reason, and acknowledged."""
    client = await nats_client.connect(nats.url)
    js = client.jetstream()
    await js.add_stream(name=name, subjects=[f"{name}.>"])
    poison: list[tuple[str, bytes, dict[str, str] | None]] = [
        (f"{name}.a", b"\xff\xfe", None),
        (f"{name}.a", b"{not json", None),
        (f"{name}.a", b"[1]", None),
        (f"{name}.a", b'{"a": "\\u0000"}', {"ce-id": "nul"}),
        (f"{name}.a", b"{}", {"big": '"' * 40_000}),
        (f"{name}.a", b'{"specversion": "1.0"}', {"content-type": "application/cloudevents+json", "ce-id": "no-data"}),
    ]
    for subject, body, headers in poison:
        await js.publish(subject, body, headers=headers)
    structured = {"specversion": "1.0", "id": "s1", "type": "t", "source": "/s", "data": {"n": 1}}
    await js.publish(
        f"{name}.a", json.dumps(structured).encode(), headers={"content-type": "application/cloudevents+json"}
    )
    await js.publish(f"{name}.a", b'{"n": 2}')
    consumer = role("consume", consume_url=nats.url, consume=f"{name}.*=k", consumer=f"c-{name}")
    db.wait_for("select count(*)::int from supervisor.job", 2, 20)
    db.wait_for("select count(*)::int from supervisor.inbox_parked", len(poison), 10)
    rows = db.rows("select event_id, reason, body from supervisor.inbox_parked order by id")
    assert [row[2] for row in rows] == [body for _, body, _ in poison]
    assert rows[0][0] == f"{name}:1"
    assert rows[3][:2] == ("nul", "payload.a: holds a NUL character, which PostgreSQL cannot store")
    assert all(row[1].startswith(("payload", "headers")) for row in rows)
    events = {row[0] for row in db.rows("select headers -> 'event' ->> 'id' from supervisor.job")}
    assert events == {"s1", None}

    async def unacknowledged() -> int:
        [info] = await js.consumers_info(name)
        return int(info.num_ack_pending or 0) + int(info.num_pending or 0)

    assert consumer.stop() == 0
    assert await unacknowledged() == 0
    await client.close()


async def test_poison_that_comes_alone_is_parked_too(db: Database, nats: Nats, name: str, role: Starter) -> None:
    """What only the database refuses, as a constraint of one's own does."""
    db.execute("alter table supervisor.job add constraint no_nine check (payload ->> 'n' <> '9')")
    client = await nats_client.connect(nats.url)
    js = client.jetstream()
    await js.add_stream(name=name, subjects=[name])
    consumer = role("consume", consume_url=nats.url, consume=f"{name}=k", consumer=f"c-{name}")
    consumer.wait_event("broker.connected", 30)
    await js.publish(name, b'{"n": 9}', headers={"ce-id": "nine"})
    db.wait_for("select event_id from supervisor.inbox_parked where reason like '%no_nine%'", "nine", 20)
    await js.publish(name, b'{"n": 1}')
    db.wait_for("select count(*)::int from supervisor.job", 1, 20)
    # What is no event's fault parks none, and is waited out.
    db.execute("alter table supervisor.inbox rename to elsewhere")
    await js.publish(name, b'{"n": 2}')
    consumer.wait_event("consumer.database_away", 20)
    db.execute("alter table supervisor.elsewhere rename to inbox")
    db.wait_for("select count(*)::int from supervisor.job", 2, 20)
    assert db.value("select count(*)::int from supervisor.inbox_parked") == 1
    assert consumer.stop() == 0
    await client.close()


async def test_a_consumer_of_an_exchange_has_a_queue_of_its_own(
    db: Database, rabbit_server: Rabbit, name: str, role: Starter
) -> None:
    rabbit_server.start()
    url = f"{rabbit_server.url}?exchange=ex-{name}"
    consumer = role("consume", consume_url=url, consume="orders.*=order,pay.#=payment", consumer=f"c-{name}")
    consumer.wait_event("broker.connected", 30)
    connection = await aio_pika.connect(rabbit_server.url)
    async with connection:
        exchange = await (await connection.channel()).get_exchange(f"ex-{name}")
        for key in ("orders.created", "pay.a.b", "other"):
            await exchange.publish(aio_pika.Message(b"{}", message_id=key), key, mandatory=False)
    db.wait_for("select count(*)::int from supervisor.job", 2, 20)
    assert db.rows("select kind from supervisor.job order by 1") == [("order",), ("payment",)]
    publish(db.connect(), "orders.paid")
    role("relay", outbox_url=url)
    db.wait_for("select count(*)::int from supervisor.job", 3, 20)


async def test_while_the_database_is_away_nothing_is_acknowledged(
    db: Database, nats: Nats, name: str, role: Starter
) -> None:
    client = await nats_client.connect(nats.url)
    js = client.jetstream()
    await js.add_stream(name=name, subjects=[name])
    consumer = role("consume", consume_url=nats.url, consume=f"{name}=k", consumer=f"c-{name}")
    await js.publish(name, b'{"n": 0}')
    db.wait_for("select count(*)::int from supervisor.job", 1, 20)
    db.server.stop("immediate")
    for n in range(1, 100):
        await js.publish(name, json.dumps({"n": n}).encode())
    consumer.wait_event("consumer.database_away", 20)
    db.server.start()
    db.wait_for("select count(*)::int from supervisor.job", 100, 30)
    await client.close()


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("a.b", "a.b", True), ("a.b", "a.c", False), ("a.*", "a.b", True), ("a.*", "a.b.c", False), ("a.*", "a", False),
        ("a.>", "a.b.c", True), ("a.>", "a", False), (">", "a", True), ("a.#", "a", True), ("a.#", "a.b.c", True),
        ("#.z", "a.b.z", True), ("#.z", "z", True), ("#.z", "z.a", False), ("*.b", "a.b", True),
    ],
)  # fmt: skip
def test_patterns_of_topics(pattern: str, topic: str, expected: bool) -> None:
    assert matches(pattern, topic) is expected
