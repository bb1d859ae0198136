"""What relays' wake-ups cost those who publish: few notifications however many commit, whatever the relays do.

The clients are pgbench: each transaction writes an ordinary row and publishes one event.
"""

from collections.abc import Callable

import pytest

from tests.support.arrivals import ground
from tests.support.brokers import Nats
from tests.support.database import Database
from tests.support.relay import Role
from tests.support.servers import Server
from tests.support.sizes import FULL
from tests.support.writers import Ear, commits_per_s

Starter = Callable[..., Role]
CLIENTS = 64 if FULL else 16
SLICE_S, SLICES = (10, 6) if FULL else (1, 1)
FLOOD_S = 60 if FULL else 5
MOST_PER_S = 100 if FULL else 200  # a short flood has more of its beginning
CHANNEL = "supervisor.outbox"
WAITING = "select count(*)::int from supervisor.relay where waiting and expires_at > clock_timestamp()"


@pytest.fixture
def orders(db: Database) -> None:
    db.execute("create table orders (id bigint generated always as identity primary key, at timestamptz default now())")


def write(topic: str, key: str) -> str:
    return f"begin; insert into orders default values; select supervisor.publish('{topic}', key => {key}); commit;"


@pytest.mark.parametrize("others", ["busy", "idle", "away"])
async def test_notifications_stay_few_however_many_publish(
    db: Database, server: Server, nats: Nats, name: str, role: Starter, orders: None, others: str
) -> None:
    """Busy: one relay, that sends. Idle: the events have one key, so of three relays two have nothing and would be
    told of each. Away: there is no broker, so nothing that is told helps."""
    await ground(nats, name).open()
    for _ in range(3 if others == "idle" else 1):
        role("relay", outbox_url=nats.url, poll_every_s=60, outbox_lease_s=1)
    db.wait_for("select count(holder)::int from supervisor.outbox_part", 64, 20)
    db.wait_for(WAITING, 3 if others == "idle" else 1, 20)
    if others == "away":
        nats.stop()
    with Ear(db, CHANNEL) as ear:
        script = write(name, "'one'" if others == "idle" else "'k' || (random() * 1000)::int")
        rate = commits_per_s(server, db, script, CLIENTS, FLOOD_S)
    per_s = ear.heard / FLOOD_S
    print(f">>> {others}: {rate:.0f} commits/s, {per_s:.0f} notifications/s: {list(ear.by_second.values())}")
    assert rate > 2 * MOST_PER_S, "no flood: nothing to see here"
    assert per_s < MOST_PER_S
    nats.start()
    if others == "idle":
        db.execute("truncate supervisor.outbox")  # one key, one event at a time: it would last
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 60 + rate * FLOOD_S / 300)
    db.wait_for(WAITING, 3 if others == "idle" else 1, 40)
    db.execute("select supervisor.publish(%s)", [name])
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 5)


@pytest.mark.timeout(600 if FULL else 120)
async def test_wake_ups_slow_no_writer_down_and_can_be_turned_off(
    db: Database, server: Server, nats: Nats, name: str, role: Starter, orders: None
) -> None:
    """With SUPERVISOR_WAKE off nothing is notified and events are found by polling. At full size: commits reach the
    disk, and with wake-ups at least 80% as many as without, in slices that alternate; one key, so two relays idle."""
    await ground(nats, name).open()
    rates: dict[bool, list[int]] = {True: [], False: []}
    if FULL:
        server.execute("alter system set fsync = on")
        server.reload()
    try:
        for number in range(2 * SLICES):
            wake = number % 4 in (0, 3)
            relays = [role("relay", outbox_url=nats.url, wake=wake, outbox_lease_s=1) for _ in range(3)]
            db.wait_for("select count(distinct holder)::int from supervisor.outbox_part", 3, 20)
            db.wait_for(WAITING, 3 if wake else 0, 20)
            with Ear(db, CHANNEL) as ear:
                rates[wake].append(round(commits_per_s(server, db, write(name, "'one'"), CLIENTS, SLICE_S)))
                db.execute("truncate supervisor.outbox")
                db.execute("select supervisor.publish(%s)", [name])
                db.wait_for("select count(*)::int from supervisor.outbox", 0, 20)
            assert (ear.heard > 0) == wake
            assert [one.stop() for one in relays] == [0, 0, 0]
            db.execute("truncate supervisor.outbox, orders")
    finally:
        server.execute("alter system reset fsync")
        server.reload()
    share = sum(rates[True]) / sum(rates[False])
    print(f">>> commits/s with wake-ups {rates[True]}, without {rates[False]}: {share:.0%}")
    if FULL:
        assert share >= 0.8
