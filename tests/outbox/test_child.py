"""Relay and consumer as children of `supervisor run`: started with it, started again, stopped with it."""

import os
import signal
from collections.abc import Callable
from typing import Any

from supervisor import inbox, publish
from tests.support.arrivals import ground
from tests.support.brokers import Nats
from tests.support.database import Database
from tests.support.relay import Role
from tests.support.roles import Roles
from tests.support.service import Service
from tests.support.waiting import wait_until


async def test_a_service_relays_and_consumes_beside_its_workers(
    db: Database, nats: Nats, name: str, service: Callable[..., Service]
) -> None:
    """From the outbox through the broker to a handler of the same service; the relay's death costs nothing."""
    place = ground(nats, name)
    await place.open()
    settings: dict[str, Any] = {
        "outbox_url": place.url, "consume_url": place.url, "consume": f"{name}=t.effect", "consumer": f"c-{name}",
        "outbox_lease_s": 1, "health_port": "auto",
    }  # fmt: skip
    running = service(processes=1, **settings)
    conn = db.connect()
    publish(conn, name, {"note": "one"})
    db.wait_for("select count(*)::int from supervisor.history where kind = 't.effect'", 1, 30)
    pid = db.value("select pid from supervisor.relay")
    os.kill(pid, signal.SIGKILL)
    publish(conn, name, {"note": "two"})
    db.wait_for("select count(*)::int from supervisor.history where kind = 't.effect'", 2, 30)
    assert db.value("select pid from supervisor.relay order by started_at desc limit 1") != pid
    assert running.metric("supervisor_consumers", broker="up") == 1
    os.kill(running.wait_event("consume.started")["pid"], signal.SIGKILL)
    running.wait_event("consume.exited", 10)
    wait_until(lambda: running.metric("supervisor_consumers", broker="up") == 1, 30, "the next one consumes")
    nats.stop()
    wait_until(lambda: running.metric("supervisor_consumers", broker="down") == 1, 20, "and says what is away")
    assert running.metric("supervisor_consumers", broker="up") == 0
    assert running.stop() == 0
    wait_until(lambda: db.value("select count(holder)::int from supervisor.outbox_part") == 0, 5)


def test_a_service_refuses_a_broker_it_cannot_use(db: Database, role: Callable[..., Role]) -> None:
    run = role("run", outbox_url="mqtt://h", health_port="off")
    assert run.process is not None
    assert run.process.wait(20) == 78
    assert "SUPERVISOR_OUTBOX_URL refused: has the scheme 'mqtt'" in run.tail()


async def test_least_rights_suffice(
    db: Database, roles: Roles, nats: Nats, name: str, role: Callable[..., Role]
) -> None:
    """A producer's login publishes, a worker's relays and consumes; a producer that uses the inbox may."""
    place = ground(nats, name)
    await place.open()
    with roles.connect("producer") as producer:
        publish(producer, name, {"n": 1}, key="k")
        publish(producer, "no stream", {"n": 2})
        with inbox(producer, "mine", "e1") as fresh:
            assert fresh
    worker = roles.login("worker")
    role("relay", outbox_url=place.url, outbox_max_attempts=1, database_url=worker)
    consumer = {"consume_url": place.url, "consume": f"{name}=k", "consumer": f"c-{name}"}
    role("consume", **consumer, database_url=worker)
    db.wait_for("select count(*)::int from supervisor.job", 1, 40)
    db.wait_for("select count(*)::int from supervisor.outbox_parked", 1, 20)
    with roles.connect("operator") as operator:
        parked = operator.execute("select id from supervisor.outbox_parked").fetchone()
        assert parked is not None
        assert operator.execute("select supervisor.drop_events(%s)", [[parked[0]]]).fetchone() == parked
