"""B45 for events: relays and consumers of two releases share the outbox and the inbox, before and after a migration."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor import exits
from supervisor.db.migrate import known_version
from tests.support.arrivals import NatsGround
from tests.support.brokers import Nats
from tests.support.database import Database
from tests.support.relay import Role
from tests.support.sizes import FULL
from tests.upgrade import releases

BOTH_RUN_S = 120.0 if FULL else 3.0
TOPIC = "upgrade"
_TROUBLE = ("refused", "parked", "lease_passed", "broker.down", "unreachable", "failed")


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[Nats]:
    made = Nats(tmp_path / "broker")
    made.start()
    yield made
    made.stop()


def trouble(role: Role) -> list[object]:
    # A loaded machine's late renewal is no trouble: what it would lead to is looked for.
    return [event for event in role.events() if event["level"] == "error" or event["event"].endswith(_TROUBLE)]


@pytest.mark.timeout(600 if FULL else 120)
async def test_relays_and_consumers_of_both_releases_share_the_work_during_a_migration(
    blank_db: Database, nats: Nats, tmp_path: Path
) -> None:
    """Nobody dies, so each event is published once; per key in order; and each is one job."""
    db = blank_db
    old, new = releases.previous(tmp_path), releases.newer(tmp_path)
    print(f"old: {old.what}; new: {new.what}")
    place = NatsGround(nats, TOPIC)
    place.window_s = 0.1  # duplicates are to be seen here, not dropped by the server
    await place.open()
    assert old.command(db, "migrate").returncode == 0
    started: list[Role] = []

    def start(release: releases.Release, command: str) -> Role:
        settings: dict[str, Any] = (
            {"outbox_url": nats.url, "outbox_lease_s": 5}
            if command == "relay"
            else {"consume_url": nats.url, "consume": f"{TOPIC}=k", "consumer": "c", "outbox_batch": 5}
        )
        role = Role(db, command, root=release.root, **settings)
        started.append(role)
        role.start()
        return role

    try:
        before = [start(old, "relay"), start(old, "consume")]
        for role in before:
            role.wait_event("broker.connected", 40)
        publishers = [
            old.publisher(db, TOPIC, BOTH_RUN_S + 1, 0.01),
            new.publisher(db, TOPIC, BOTH_RUN_S, 0.01),
        ]
        db.wait_for("select count(*) > 50 from supervisor.job", True, 30)
        migrated = new.command(db, "migrate")
        assert migrated.returncode == 0, migrated.stderr
        after = [start(new, "relay"), start(new, "consume")]
        for role in after:
            role.wait_event("broker.connected", 40)
        shares = "select array(select count(*) from supervisor.outbox_part where holder is not null group by holder)"
        db.wait_for(shares, [32, 32], 20)

        made: list[str] = []
        for publisher in publishers:
            said, _ = publisher.communicate(timeout=BOTH_RUN_S + 30)
            assert publisher.returncode == 0
            made += said.split()
        assert len(made) > 100 * BOTH_RUN_S / 3
        db.wait_for("select count(*)::int from supervisor.job", len(made), 30)
        arrived = await place.arrived()
        assert Counter(one.event_id for one in arrived) == Counter(made), "each once"
        for key in {one.key for one in arrived} - {None}:
            numbers = [one.payload["n"] for one in arrived if one.key == key]
            assert numbers == sorted(numbers), key
        assert db.value("select count(*)::int from supervisor.inbox") == len(made)
        assert db.value("select count(distinct headers -> 'event' ->> 'id')::int from supervisor.job") == len(made)
        for role in before:
            assert role.stop() == exits.OK
        db.wait_for(shares, [64], 20)

        # Old ones that are started only now say so, and work; so does the other release's going.
        late = [start(old, "relay"), start(old, "consume")]
        for role in late:
            assert str(known_version() + 1) in role.wait_event("schema.newer")["reason"]
        db.wait_for(shares, [32, 32], 20)
        for role in after:
            assert role.stop() == exits.OK
        made += old.publisher(db, TOPIC, 0.2, 0.01).communicate(timeout=30)[0].split()
        db.wait_for("select count(*)::int from supervisor.job", len(made), 30)
        for role in late:
            assert role.stop() == exits.OK
        for role in started:
            assert trouble(role) == []
    finally:
        for role in started:
            print(role.tail())
            role.close()
