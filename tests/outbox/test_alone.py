"""`supervisor relay` and `supervisor consume` by themselves: probes, numbers, what they say while something is away."""

import re
import socket
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from psycopg.conninfo import make_conninfo

from supervisor import NewEvent, publish, publish_many
from tests.support.arrivals import ground
from tests.support.brokers import Broker, Nats, Rabbit
from tests.support.cable import Cable
from tests.support.database import Database
from tests.support.relay import Role
from tests.support.servers import Server
from tests.support.sizes import FULL
from tests.support.waiting import wait_until

Starter = Callable[..., Role]
NO_BROKER = "the broker cannot be reached"
NO_DATABASE = "the database cannot be reached"


def values(page: str) -> dict[str, float]:
    """The samples of a page, by name and labels."""
    found = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in found}


def ready(one: Role, *reasons: str) -> bool:
    """Whether it is ready, or not for these reasons."""
    return one.ready() == (not reasons, list(reasons))


async def test_a_relay_says_whether_events_flow_and_what_it_has_counted(
    db: Database, nats: Nats, name: str, role: Starter
) -> None:
    place = ground(nats, name)
    await place.open()
    relay = role("relay", outbox_url=nats.url, health_port="auto", watch_every_s=0.2, outbox_max_attempts=1)
    publish_many(db.connect(), [NewEvent(name), NewEvent(name), NewEvent("no stream", key="k")])
    wait_until(lambda: relay.ready() == (True, []), 20, "the relay is ready")
    assert relay.page("/livez")[0] == 200

    def counted() -> bool:
        seen = values(relay.page("/metrics")[1])
        return (
            seen.get('supervisor_outbox_events_total{outcome="published"}') == 2
            and seen.get('supervisor_outbox_events_total{outcome="parked"}') == 1
            and seen.get("supervisor_outbox_pending") == 0
            and seen.get("supervisor_outbox_parked") == 1
            and seen.get("supervisor_outbox_unled_parts") == 0
            and seen.get("supervisor_database_up") == 1
        )

    wait_until(counted, 20, "what was published and parked is on the page")
    page = relay.page("/metrics")[1]
    assert re.search(r'^supervisor_build_info\{version="', page, re.MULTILINE)
    # What alerts take for a supervisor: one that is not ready, has no worker, does not listen.
    strangers = re.findall(r"^(supervisor_(?:ready|workers|listening|slots|lease\w*|degraded)\b.*)", page, re.MULTILINE)
    assert strangers == []

    nats.stop()
    wait_until(lambda: relay.ready() == (False, [NO_BROKER]), 20, "it says that the broker is away")
    assert relay.page("/livez")[0] == 200
    wait_until(
        lambda: values(relay.page("/metrics")[1]).get('supervisor_outbox_relays{broker="down"}') == 1,
        20,
        "so do metrics",
    )
    nats.start()
    wait_until(lambda: relay.ready() == (True, []), 20, "it is ready again")
    assert relay.stop() == 0


async def test_a_consumer_says_the_same_and_counts_what_came_twice(
    db: Database, nats: Nats, name: str, role: Starter
) -> None:
    other = f"{name}b"  # another stream, or the server itself would drop what it has just had
    for topic in (name, other):
        await ground(nats, topic).open()
    conn = db.connect()
    first = publish(conn, name, {"n": 1})
    role("relay", outbox_url=nats.url)
    settings = {"consume_url": nats.url, "consume": f"{name}=order,{other}=order", "consumer": f"c-{name}"}
    consumer = role("consume", **settings, health_port="auto", watch_every_s=0.2)
    db.wait_for("select count(*)::int from supervisor.job", 1, 30)
    conn.execute("select supervisor.publish(%s, event_id => %s)", [other, str(first.event_id)])

    def counted() -> bool:
        seen = values(consumer.page("/metrics")[1])
        return [
            seen.get(f'supervisor_consumed_events_total{{outcome="{outcome}"}}')
            for outcome in ("received", "duplicate")
        ] == [1, 1]

    wait_until(counted, 20, "one event received, one dropped")
    assert consumer.ready() == (True, [])
    assert consumer.stop() == 0


async def test_a_consumer_sees_an_outage_while_nothing_comes(
    db: Database, broker: Broker, name: str, role: Starter
) -> None:
    """With each broker: in its probe and its numbers. Then it goes on by itself."""
    place = ground(broker, name)
    await place.open()
    settings = {"consume_url": place.url, "consume": f"{name}=order", "consumer": f"c-{name}"}
    consumer = role("consume", **settings, health_port="auto", watch_every_s=0.2)

    def brokers() -> tuple[float | None, float | None]:
        seen = values(consumer.page("/metrics")[1])
        return seen.get('supervisor_consumers{broker="up"}'), seen.get('supervisor_consumers{broker="down"}')

    wait_until(lambda: consumer.ready() == (True, []), 40, "it consumes")
    assert brokers() == (1, 0)
    broker.stop()
    wait_until(lambda: consumer.ready() == (False, [NO_BROKER]), 20, "it says that the broker is away")
    assert brokers() == (0, 1)
    broker.start()
    wait_until(lambda: consumer.ready() == (True, []), 40, "it is ready again")
    assert brokers() == (1, 0)
    role("relay", outbox_url=place.url)
    publish(db.connect(), name, {"n": 1})
    db.wait_for("select count(*)::int from supervisor.job", 1, 40)
    assert consumer.stop() == 0


@pytest.mark.parametrize("kind", ["rabbit", *(["nats"] if FULL else [])])
async def test_a_broker_that_hangs_is_seen_while_nothing_goes_or_comes(
    db: Database, kind: str, name: str, role: Starter, request: pytest.FixtureRequest
) -> None:
    """Connected, and silent: by heartbeats, here of a second; NATS, whose pings have no option, in 20 to 30 s."""
    broker: Nats | Rabbit = request.getfixturevalue(f"{kind}_server")
    broker.start()
    await ground(broker, name).open()
    url = f"{broker.url}?heartbeat=1" if isinstance(broker, Rabbit) else broker.url
    roles = (
        role("relay", outbox_url=url, health_port="auto"),
        role("consume", consume_url=url, consume=f"{name}=order", consumer=f"c-{name}", health_port="auto"),
    )
    for one in roles:
        wait_until(partial(ready, one), 40, "it is ready")
    broker.freeze()
    try:
        for one in roles:
            wait_until(partial(ready, one, NO_BROKER), 45, "it says that the broker is away")
    finally:
        broker.thaw()
    for one in roles:
        wait_until(partial(ready, one), 40, "it is ready again")
        assert one.stop() == 0


@pytest.mark.parametrize(("page", "relay", "consumer"), [("auto", 5, 2), ("off", 4, 1)])
async def test_it_has_the_connections_that_the_manual_counts(
    db: Database, nats: Nats, name: str, role: Starter, page: str, relay: int, consumer: int
) -> None:
    """docs/operations.md, Sizing: alone, and without a page as they are beside the workers of a service."""
    await ground(nats, name).open()
    settings = {"consume_url": nats.url, "consume": f"{name}=order", "consumer": f"c-{name}"}
    for one in (role("relay", outbox_url=nats.url, health_port=page), role("consume", **settings, health_port=page)):
        one.wait_event("broker.connected", 40)
    publish_many(db.connect(), [NewEvent(name) for _ in range(2000)])
    most = {"relay": 0, "consume": 0}
    seen = (
        "select split_part(application_name, ' ', 2), count(*)::int from pg_stat_activity"
        " where datname = current_database() and application_name like 'pg-supervisor %' group by 1"
    )

    def done() -> bool:
        for what, count in db.rows(seen):
            most[what] = max(most[what], count)
        return bool(db.value("select count(*) = 2000 from supervisor.job"))

    wait_until(done, 30, "all are jobs")
    assert most == {"relay": relay, "consume": consumer}


@pytest.fixture
def cable(server: Server) -> Iterator[Cable]:
    made = Cable(server.port).start()
    yield made
    made.close()


@pytest.mark.parametrize("command", ["relay", "consume"])
def test_a_database_that_is_away_makes_it_unready_and_restarts_nothing(
    db: Database, nats: Nats, name: str, role: Starter, cable: Cable, command: str
) -> None:
    address = make_conninfo(db.conninfo, host="127.0.0.1", port=cable.port)
    settings = (
        {"outbox_url": nats.url, "outbox_lease_s": 1}
        if command == "relay"
        else {"consume_url": nats.url, "consume": f"{name}=k", "consumer": f"c-{name}"}
    )
    cable.pull()
    one = role(command, **settings, database_url=address, health_port="auto", watch_every_s=0.2)
    what = "relay" if command == "relay" else "consume"
    wait_until(
        lambda: one.ready() == (False, [f"the {what} is starting", NO_DATABASE]), 20, "it says why it does not start"
    )
    assert one.page("/livez")[0] == 200
    cable.put_back()
    if command == "consume":  # nothing was made for it to consume from
        wait_until(lambda: one.ready()[1] in ([], [NO_BROKER]), 20, "it has begun")
    else:
        wait_until(lambda: one.ready() == (True, []), 20, "it has begun")
    cable.pull()
    wait_until(lambda: NO_DATABASE in one.ready()[1], 20, "it says that the database is away")
    assert one.page("/livez")[0] == 200
    cable.put_back()
    wait_until(lambda: NO_DATABASE not in one.ready()[1], 20, "it is there again")
    assert one.stop() == 0


def test_a_port_that_is_taken_is_told_at_the_start(db: Database, nats: Nats, role: Starter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        relay = role("relay", outbox_url=nats.url, health_port=port)
        assert relay.process is not None
        assert relay.process.wait(20) == 78
    assert f"SUPERVISOR_HEALTH_PORT={port}: in use on 127.0.0.1" in relay.tail()
