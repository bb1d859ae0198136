"""The relay against a real JetStream: what was committed arrives, in order per key; what is wrong is parked."""

import json
import signal
from collections.abc import Callable
from typing import Any

import nats as nats_client
from nats.js.api import DiscardPolicy

from supervisor import NewEvent, publish, publish_many
from tests.support.brokers import Nats
from tests.support.database import Database
from tests.support.relay import Role
from tests.support.waiting import wait_until

Starter = Callable[..., Role]


async def make_stream(url: str, name: str, **options: Any) -> None:
    client = await nats_client.connect(url)
    await client.jetstream().add_stream(name=name, subjects=[f"{name}.>"], **options)
    await client.close()


async def arrived(url: str, name: str) -> list[tuple[str, dict[str, Any], dict[str, str]]]:
    """Everything in the stream, in its order: (subject, payload, headers)."""
    client = await nats_client.connect(url)
    found = []
    try:
        js = client.jetstream()
        count = (await js.stream_info(name)).state.messages
        if count:
            sub = await js.subscribe(f"{name}.>", ordered_consumer=True)
            for _ in range(count):
                one = await sub.next_msg(timeout=10)
                found.append((one.subject, json.loads(one.data), dict(one.headers or {})))
    finally:
        await client.close()
    return found


async def count(url: str, name: str) -> int:
    client = await nats_client.connect(url)
    try:
        return int((await client.jetstream().stream_info(name)).state.messages)
    finally:
        await client.close()


def pending(db: Database) -> int:
    return int(db.value("select count(*)::int from supervisor.outbox"))


async def test_an_event_arrives_as_a_cloud_event(db: Database, nats: Nats, name: str, role: Starter) -> None:
    await make_stream(nats.url, name)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    given = publish(
        db.connect(), f"{name}.created", {"n": 1, "ü": "é"}, key="k",
        headers={"traceparent": trace, "ce-type": "shop.order.created", "x-n": 7},
    )  # fmt: skip
    relay = role("relay", outbox_url=nats.url, outbox_source="/shop")
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 20)
    [(subject, payload, headers)] = await arrived(nats.url, name)
    created = db.value("select created_at from supervisor.outbox_sent")
    assert (subject, payload) == (f"{name}.created", {"n": 1, "ü": "é"})
    assert headers.pop("ce-time").startswith(created.strftime("%Y-%m-%dT"))
    assert headers == {
        "ce-id": str(given.event_id), "ce-specversion": "1.0", "ce-type": "shop.order.created", "ce-source": "/shop",
        "ce-partitionkey": "k", "content-type": "application/json", "traceparent": trace, "x-n": "7",
        "Nats-Msg-Id": str(given.event_id),
    }  # fmt: skip
    assert db.rows("select id, topic, key, payload from supervisor.outbox_sent") == [
        (given.id, f"{name}.created", "k", None)
    ]
    assert relay.stop() == 0
    assert db.value("select count(*)::int from supervisor.relay") == 0
    assert db.value("select count(holder)::int from supervisor.outbox_part") == 0


async def test_an_event_committed_after_later_ones_went_out_is_published(
    db: Database, nats: Nats, name: str, role: Starter
) -> None:
    """B47: A inserts and waits, B inserts and commits, the relay publishes B, A commits. A is not skipped."""
    await make_stream(nats.url, name)
    role("relay", outbox_url=nats.url).wait_event("broker.connected")
    slow = db.connect(autocommit=False)
    first = publish(slow, f"{name}.a", {"who": "A"}, key="k")
    quick = publish(db.connect(), f"{name}.a", {"who": "B"}, key="k")
    assert first.id < quick.id
    db.wait_for("select id from supervisor.outbox_sent", quick.id, 10)  # B is published while A is open
    slow.commit()
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 3)
    assert [payload["who"] for _, payload, _ in await arrived(nats.url, name)] == ["B", "A"]


async def test_whoever_waited_for_anothers_commit_is_published_after_it(
    db: Database, nats: Nats, name: str, role: Starter
) -> None:
    """Order of a key is that of its transactions, whichever of them had begun to write first."""
    await make_stream(nats.url, name)
    role("relay", outbox_url=nats.url).wait_event("broker.connected")
    writers = [db.connect(autocommit=False) for _ in range(2)]
    for turn in range(30):
        early, late = writers if turn % 2 else reversed(writers)
        early.execute("insert into effects (job_id, kind, attempt, pid) values (1, 'x', 1, 1)")  # has its number first
        publish(late, f"{name}.a", {"n": 2 * turn}, key="k")
        late.commit()
        publish(early, f"{name}.a", {"n": 2 * turn + 1}, key="k")
        early.commit()
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 10)
    assert [payload["n"] for _, payload, _ in await arrived(nats.url, name)] == list(range(60))


async def test_an_idle_relay_sends_an_event_at_once(db: Database, nats: Nats, name: str, role: Starter) -> None:
    """It is told: no poll is waited for."""
    await make_stream(nats.url, name)
    role("relay", outbox_url=nats.url, poll_every_s=60, outbox_lease_s=30)
    db.wait_for("select count(*)::int from supervisor.relay where waiting", 1, 15)
    conn = db.connect()
    for turn in range(3):
        db.wait_for("select count(*)::int from supervisor.relay where waiting", 1, 5)
        publish(conn, f"{name}.a", {"n": turn})
        db.wait_for("select count(*)::int from supervisor.outbox", 0, 2)


async def test_bad_events_are_parked_and_the_good_ones_behind_them_go_out(
    db: Database, nats: Nats, name: str, role: Starter
) -> None:
    """B48: batch 10, 15 events at the head that no stream takes, 1,000 of other keys behind them. B11: their ids are
    above 2^31."""
    await make_stream(nats.url, name)
    conn = db.connect()
    conn.execute("alter table supervisor.outbox alter id restart with 3000000000")
    publish_many(conn, [NewEvent(f"no.{name}", {"n": n}, key=f"bad{n}" if n % 2 else None) for n in range(15)])
    publish_many(conn, [NewEvent(f"{name}.good", {"n": n}, key=f"k{n % 50}") for n in range(1000)])
    follower = publish(conn, f"{name}.good", {"n": -1}, key="bad1")
    relay = role("relay", outbox_url=nats.url, outbox_batch=10, outbox_max_attempts=3, retry_base_s=0.1)
    wait_until(lambda: relay.events("broker.connected"), 20)
    db.wait_for("select count(*)::int from supervisor.outbox_sent where topic like '%.good'", 1000, 10)
    db.wait_for("select count(*)::int from supervisor.outbox_parked", 15, 15)
    rows = db.rows("select distinct attempts, last_error from supervisor.outbox_parked")
    assert rows == [(3, f"no stream takes the subject 'no.{name}'")]
    # The key of a parked event is held, and goes on in order when that is replayed.
    assert db.rows("select id from supervisor.outbox") == [(follower.id,)]
    client = await nats_client.connect(nats.url)
    await client.jetstream().add_stream(name=f"late{name}", subjects=[f"no.{name}"])
    await client.close()
    ids = [row[0] for row in db.rows("select id from supervisor.outbox_parked order by id")]
    assert db.rows("select supervisor.replay_events(%s)", [ids]) == [(each,) for each in ids]
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 10)
    sent = db.rows("select id from supervisor.outbox_sent where key = 'bad1' order by sent_at")
    assert sent == [(ids[1],), (follower.id,)]
    assert min(*ids, follower.id) >= 3_000_000_000
    assert relay.stop() == 0


async def test_a_dropped_event_lets_its_key_go_on(db: Database, nats: Nats, name: str, role: Starter) -> None:
    await make_stream(nats.url, name)
    conn = db.connect()
    bad = publish(conn, "no stream", {}, key="k")
    publish_many(conn, [NewEvent(f"{name}.a", {"n": n}, key="k") for n in range(200)])
    role("relay", outbox_url=nats.url, outbox_max_attempts=1)
    db.wait_for("select id from supervisor.outbox_parked", bad.id, 20)
    assert pending(db) == 200
    assert db.value("select supervisor.drop_events(%s)", [[bad.id]]) == bad.id
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 10)
    assert [payload["n"] for _, payload, _ in await arrived(nats.url, name)] == list(range(200))


async def test_where_it_is_so_set_a_parked_event_holds_nothing_back(
    db: Database, nats: Nats, name: str, role: Starter
) -> None:
    await make_stream(nats.url, name)
    publish_many(db.connect(), [NewEvent("no stream", key="k"), NewEvent(f"{name}.a", {"n": 1}, key="k")])
    role("relay", outbox_url=nats.url, outbox_max_attempts=1, outbox_after_parking="pass")
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 20)
    assert await count(nats.url, name) == 1


async def test_what_the_broker_refuses_is_that_events_fault(db: Database, nats: Nats, name: str, role: Starter) -> None:
    await make_stream(nats.url, name, max_msgs=1, discard=DiscardPolicy.NEW)
    conn = db.connect()
    publish(conn, f"{name}.first")
    role("relay", outbox_url=nats.url, outbox_max_attempts=2, retry_base_s=0.05)
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 20)
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("a b", {}, "its topic is no subject: it has spaces, wildcards or empty parts"),
        ("a.*", {}, "its topic is no subject: it has spaces, wildcards or empty parts"),
        ("a..b", {}, "its topic is no subject: it has spaces, wildcards or empty parts"),
        (f"{name}.big", {"x": "x" * (1 << 20)}, "with its headers, the server's max_payload is 1048576"),
        (f"{name}.full", {"n": 1}, "JetStream refused it: maximum messages exceeded (10077)"),
        ("_INBOX.x", {"n": 1}, "no stream takes the subject '_INBOX.x'"),
    ]
    for topic, payload, _ in cases:
        publish(conn, topic, payload)
    db.wait_for("select count(*)::int from supervisor.outbox_parked", len(cases), 15)
    errors = [row[0] for row in db.rows("select last_error from supervisor.outbox_parked order by id")]
    for error, (_, _, said) in zip(errors, cases, strict=True):
        assert error.endswith(said), (error, said)


async def test_an_outage_of_the_broker_parks_nothing(db: Database, nats: Nats, name: str, role: Starter) -> None:
    await make_stream(nats.url, name)
    conn = db.connect()
    relay = role("relay", outbox_url=nats.url, outbox_max_attempts=1)
    publish(conn, f"{name}.a", {"n": 0})
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 20)
    nats.stop(signal.SIGKILL)
    publish_many(conn, [NewEvent(f"{name}.a", {"n": n + 1}, key="k") for n in range(300)])
    relay.wait_event("broker.unreachable")
    db.wait_for("select (detail ->> 'broker_error') is not null from supervisor.relay", True, 5)
    assert pending(db) == 300
    nats.start()
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 20)
    assert db.value("select count(*)::int from supervisor.outbox_parked") == 0
    assert db.value("select max(attempts) from supervisor.outbox_sent") == 0
    assert [payload["n"] for _, payload, _ in await arrived(nats.url, name)] == list(range(301))


async def test_a_broker_that_hangs_charges_no_event(db: Database, nats: Nats, name: str, role: Starter) -> None:
    """It stops as a whole at full flow, with a batch on its way: connected, and silent for longer than the limit."""
    await make_stream(nats.url, name)
    count = 20_000
    db.execute(
        "select count(*) from generate_series(1, %s) as n,"
        " supervisor.publish(%s, jsonb_build_object('n', n), key => 'k' || n %% 5000)",
        [count, f"{name}.a"],
    )
    relay = role("relay", outbox_url=nats.url, outbox_max_attempts=1, publish_timeout_s=1)
    db.wait_for("select count(*) < %s from supervisor.outbox", True, 30, [count - 1000])
    nats.freeze()
    try:
        relay.wait_event("broker.down", 20)
        assert pending(db) > 0, "it was frozen too late to show anything"
    finally:
        nats.thaw()
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 30)
    assert db.value("select count(*)::int from supervisor.outbox_parked") == 0
    assert relay.events("event.refused") == []
    assert {payload["n"] for _, payload, _ in await arrived(nats.url, name)} == set(range(1, count + 1))


async def test_a_relay_may_start_before_its_broker(db: Database, nats: Nats, name: str, role: Starter) -> None:
    await make_stream(nats.url, name)
    nats.stop()
    publish(db.connect(), f"{name}.a")
    relay = role("relay", outbox_url=nats.url)
    relay.wait_event("broker.unreachable")
    nats.start()
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 20)


async def test_parts_are_shared_and_move_when_a_relay_dies(db: Database, nats: Nats, name: str, role: Starter) -> None:
    """Four relays have 16 parts each; of one killed the others take over within its lease, of one stopped at once."""
    await make_stream(nats.url, name)
    shares = (
        "select array_agg(n order by n) from (select count(*)::int as n from supervisor.outbox_part group by holder) s"
    )
    relays = [role("relay", outbox_url=nats.url, outbox_lease_s=1) for _ in range(4)]
    db.wait_for(shares, [16] * 4, 20)
    relays[0].kill9()
    wait_until(lambda: sum(db.value(shares)) == 64 and len(db.value(shares)) == 3 and min(db.value(shares)) >= 20, 10)
    assert relays[1].stop() == 0
    db.wait_for(shares, [32, 32], 2)
    publish_many(db.connect(), [NewEvent(f"{name}.a", {"n": n}) for n in range(128)])
    db.wait_for("select count(*)::int from supervisor.outbox", 0, 10)
    assert await count(nats.url, name) == 128


def test_a_relay_that_is_stopped_for_long_changes_nothing_afterwards(
    db: Database, nats: Nats, name: str, role: Starter
) -> None:
    """SIGSTOP it past its lease: another leads, and what the first one still writes matches nothing."""
    first = role("relay", outbox_url=nats.url, outbox_lease_s=1)
    db.wait_for("select count(holder)::int from supervisor.outbox_part", 64, 15)
    first.process.send_signal(signal.SIGSTOP)  # type: ignore[union-attr]
    second = role("relay", outbox_url=nats.url, outbox_lease_s=1)
    second_holds = (
        "select count(*)::int from supervisor.outbox_part p join supervisor.relay r on r.id = p.holder where r.pid = %s"
    )
    db.wait_for(second_holds, 64, 15, [second.pid])
    first.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
    db.wait_for(second_holds, 32, 15, [second.pid])
    db.wait_for(second_holds, 32, 5, [first.pid])


def test_an_address_that_cannot_be_used_ends_it_at_the_start(db: Database, role: Starter) -> None:
    relay = role("relay", outbox_url="mqtt://user:s3cr3tword@127.0.0.1")
    assert relay.process is not None
    assert relay.process.wait(20) == 78
    assert "SUPERVISOR_OUTBOX_URL refused: has the scheme 'mqtt', for which there is no driver" in relay.tail()
    assert "s3cr3tword" not in relay.tail()
