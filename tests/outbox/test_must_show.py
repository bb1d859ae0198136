"""B47 at its full weight: writers that hold their transactions, some of which roll back; the relay is killed again and
again, and the broker goes away twice. What was committed is what was published, in order per key, and handled once.
"""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from supervisor import inbox, publish
from tests.support.arrivals import NatsGround, ground
from tests.support.brokers import Broker, Nats
from tests.support.database import Database
from tests.support.relay import Role
from tests.support.sizes import FULL, within

WRITERS = 100 if FULL else 40
SECONDS = 60.0 if FULL else 4.0
HOLD_S = 2.0 if FULL else 1.0
KILL_EVERY_S = 5.0 if FULL else 1.5
KEYS = 20


async def write(db: Database, number: int, until: float, committed: dict[str, tuple[str, int]]) -> None:
    """Transactions of 1-5 events, held open; 20% are rolled back. A key's row is locked, so its order is known."""
    rng = random.Random(number)
    async with await db.aconnect(autocommit=False) as conn:
        while time.monotonic() < until:
            key = f"k{rng.randrange(KEYS)}" if rng.random() < 0.5 else None
            # Nobody waits in line for a key for longer than the run: what is locked is held for a moment only.
            hold = rng.uniform(0, HOLD_S) if key is None else rng.uniform(0, 0.05)
            if key is not None:
                await conn.execute("select pg_advisory_xact_lock(hashtext(%s))", [key])
            made = [await publish(conn, db.name, {"key": key}, key=key) for _ in range(rng.randint(1, 5))]
            await asyncio.sleep(hold)
            if rng.random() < 0.2:
                await conn.rollback()
                continue
            await conn.commit()
            for one in made:
                committed[str(one.event_id)] = (key or "", one.id)


async def disturb(start: Callable[[], Role], broker: Broker, until: float) -> int:
    """Kill the relay every few seconds, and take the broker away twice; how many times either happened."""
    rng = random.Random(47)
    outages = [until - SECONDS * share for share in (0.6, 0.3)]
    relay, deaths = start(), 0
    next_kill = time.monotonic() + KILL_EVERY_S
    while (now := time.monotonic()) < until:
        if now >= next_kill:
            relay.kill9()
            relay = start()
            deaths += 1
            next_kill = now + KILL_EVERY_S
        if outages and now >= outages[0]:
            outages.pop(0)
            number = rng.choice([signal.SIGKILL, signal.SIGTERM])
            await asyncio.to_thread(broker.restart, 0.5, number)
            deaths += 1
        await asyncio.sleep(0.05)
    return deaths


@pytest.mark.timeout(400)
async def test_what_is_committed_is_published_and_handled_once(
    db: Database, broker: Broker, role: Callable[..., Role]
) -> None:
    place = ground(broker, db.name)
    if isinstance(place, NatsGround):
        place.window_s = 0.1  # duplicates are to be seen here, not dropped by the server
    await place.open()
    committed: dict[str, tuple[str, int]] = {}
    until = time.monotonic() + SECONDS

    def start() -> Role:
        return role("relay", outbox_url=place.url, outbox_lease_s=1, publish_timeout_s=3, outbox_max_attempts=1)

    work: list[Any] = [write(db, number, until, committed) for number in range(WRITERS)]
    *_, deaths = await asyncio.gather(*work, disturb(start, broker, until))
    broker.start()
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 60)

    assert db.value("select count(*)::int from supervisor.outbox_parked") == 0
    arrived = await place.arrived()
    times = Counter(one.event_id for one in arrived)
    assert times.keys() == committed.keys(), (len(times), len(committed))
    duplicates = times.total() - len(times)
    print(f"{len(committed)} events, {deaths} deaths and outages, {duplicates} duplicates")
    assert duplicates <= deaths * 1000, "duplicates come from deaths, and are at most what was in flight"

    first_seen: dict[str, list[int]] = {}
    for event_id in dict.fromkeys(one.event_id for one in arrived):
        key, row = committed[event_id]
        if key:
            first_seen.setdefault(key, []).append(row)
    for key, rows in first_seen.items():
        assert rows == sorted(rows), f"order of {key} once duplicates are dropped"

    handled = "insert into effects (job_id, kind, attempt, pid, note) values (0, 'x', 1, 1, %s)"
    async with await db.aconnect(autocommit=False) as conn:
        for one in arrived:
            async with inbox(conn, "test", one.event_id) as fresh:
                if fresh:
                    await conn.execute(handled, [one.event_id])
        await conn.commit()
    counted = "select count(*)::int, count(distinct note)::int from effects"
    assert db.rows(counted) == [(len(committed), len(committed))]


async def test_without_a_death_nothing_is_published_twice(db: Database, nats: Nats, role: Callable[..., Role]) -> None:
    """Late commits, rollbacks and two relays that come and go by SIGTERM: every event exactly once."""
    place = NatsGround(nats, db.name)
    place.window_s = 0.1
    await place.open()
    committed: dict[str, tuple[str, int]] = {}
    until = time.monotonic() + SECONDS

    async def roll() -> None:
        relay = role("relay", outbox_url=place.url)
        while time.monotonic() < until:
            await asyncio.sleep(1.5)
            following = role("relay", outbox_url=place.url)
            await asyncio.to_thread(following.wait_event, "relay.parts", 20)
            assert await asyncio.to_thread(relay.stop) == 0
            relay = following

    work: list[Any] = [write(db, number, until, committed) for number in range(WRITERS // 2)]
    await asyncio.gather(*work, roll())
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 30)
    arrived = [one.event_id for one in await place.arrived()]
    assert sorted(arrived) == sorted(committed)


async def test_an_event_of_a_transaction_that_was_open_for_long_is_found_promptly(
    db: Database, nats: Nats, role: Callable[..., Role]
) -> None:
    """Its id lies below everything that was published since; an old snapshot keeps all of that in the table."""
    place = NatsGround(nats, db.name)
    await place.open()
    role("relay", outbox_url=place.url).wait_event("broker.connected")
    pin = db.connect(autocommit=False)
    pin.execute("set transaction isolation level repeatable read")
    pin.execute("select count(*) from supervisor.outbox")
    slow = db.connect(autocommit=False)
    publish(slow, db.name, {})
    for _ in range(10):
        db.execute("select count(*) from generate_series(1, 500), supervisor.publish(%s, '{}')", [db.name])
        db.wait_for("select count(*)::int from supervisor.outbox", 0, 20)
    slow.commit()
    began = time.monotonic()
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 5)
    assert time.monotonic() - began < within(1, busy_s=4)


def test_the_database_refuses_what_no_relay_could_read(db: Database) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        db.execute("insert into supervisor.outbox (topic, retry_at) values ('t', 'infinity')")
    with pytest.raises(psycopg.errors.CheckViolation):
        db.execute("insert into supervisor.outbox (topic, id) values ('t', -1)")
