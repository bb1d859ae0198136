"""B33 for relays and consumers: their hosts' wall clocks are wrong and jump, and only the database's clock counts.

Not with Kafka: its client, librdkafka, does not start under libfaketime.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor import publish
from tests.support.arrivals import NatsGround, ground
from tests.support.brokers import Broker, Rabbit
from tests.support.database import Database
from tests.support.faketime import FAKETIME, environment
from tests.support.relay import Role
from tests.support.sizes import FULL
from tests.support.tools import missing

SECONDS = 30.0 if FULL else 4.0
RETRY_S = 5.0
LATE_S = 1.0 if FULL else 5.0  # a loaded machine is late; a wrong clock would be 90 s or an hour
BROKERS = ["nats", "rabbit"] if FULL else ["nats"]


async def write(db: Database, topic: str, seconds: float) -> list[str]:
    """Events, keyed and not, for so long; their ids."""
    made: list[str] = []
    until = time.monotonic() + seconds
    async with await db.aconnect() as conn:
        while time.monotonic() < until:
            one = await publish(conn, topic, {"n": len(made)}, key=f"k{len(made) % 7}" if len(made) % 3 else None)
            made.append(str(one.event_id))
            await asyncio.sleep(0.01)
    return made


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", BROKERS)
async def test_wrong_clocks_change_nothing_for_relays_and_consumers(
    db: Database, kind: str, name: str, role: Callable[..., Role], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """One host is 90 s behind, the other jumps by an hour, forth and back: parts stay, nothing is published twice,
    an event is tried again when the server says so, and no age is negative.
    """
    if not FAKETIME.exists():
        missing("libfaketime (apt install faketime)")
    broker: Broker = request.getfixturevalue(f"{kind}_server")
    broker.start()
    place, later = ground(broker, name), ground(broker, f"{name}later")
    for one in (place, later):
        if isinstance(one, NatsGround):
            one.window_s = 0.1  # duplicates are to be seen here, not dropped by the server
    await place.open()
    behind, jumping = tmp_path / "behind", tmp_path / "jumping"
    behind.write_text("-90s")
    jumping.write_text("+0s")
    settings = {"outbox_url": place.url, "outbox_lease_s": 5, "retry_base_s": RETRY_S, "retry_cap_s": RETRY_S}
    page = {"health_port": "auto", "watch_every_s": 0.2}
    relays = [role("relay", env=environment(clock), **settings, **page) for clock in (behind, jumping)]
    db.wait_for("select array(select count(*) from supervisor.outbox_part group by holder)", [32, 32], 20)
    consumer = role(
        "consume", env=environment(jumping), consume_url=place.url, consume=f"{name}=k", consumer=f"c-{name}", **page
    )
    consumer.wait_event("broker.connected", 40)
    tokens = db.value("select sum(token)::int from supervisor.outbox_part")

    writing = asyncio.create_task(write(db, place.topic, SECONDS))
    refused = publish(db.connect(), later.topic, {"n": -1})
    db.wait_for("select attempts from supervisor.outbox where id = %s", 1, 10, [refused.id])
    due = db.value("select extract(epoch from retry_at)::float8 from supervisor.outbox where id = %s", [refused.id])
    await later.open()
    for jump in ("+3600s", "-3600s"):
        await asyncio.sleep(SECONDS / 3)
        jumping.write_text(jump)
    made = await writing
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 20)

    if not isinstance(broker, Rabbit):  # there the consumer has taken them
        assert Counter(one.event_id for one in await place.arrived()) == Counter(made), "each once"
    assert [one.event_id for one in await later.arrived()] == [str(refused.event_id)]
    assert db.value("select sum(token)::int from supervisor.outbox_part") == tokens, "no part has changed hands"
    for relay in relays:
        assert relay.events("relay.lease_passed") == []
    first, last = db.rows(
        "select min(took)::float8, max(took)::float8"
        " from (select extract(epoch from sent_at - created_at) as took"
        " from supervisor.outbox_sent where id <> %s) as one",
        [refused.id],
    )[0]
    print(f"published after {first:.3f} to {last:.3f} s, by the server")
    assert 0 <= first <= last < LATE_S
    retried = db.value(
        "select extract(epoch from sent_at)::float8 from supervisor.outbox_sent where id = %s", [refused.id]
    )
    assert 0 <= retried - due < LATE_S, "when it was due, by the server"
    db.wait_for("select count(*)::int from supervisor.job", len(made), 20)
    assert db.value("select count(distinct payload ->> 'n')::int from supervisor.job") == len(made)
    for process in (*relays, consumer):
        assert process.ready() == (True, [])
        ages = [line for line in process.page("/metrics")[1].splitlines() if line.startswith("supervisor_")]
        assert [line for line in ages if line.rpartition(" ")[2].startswith("-")] == []
        assert process.stop() == 0
    told = consumer.wait_event("consumer.stopped")
    assert (told["received"], told["duplicate"]) == (len(made), 0)
