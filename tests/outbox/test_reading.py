"""The statements of a relay: what a look finds and what it costs, and what a former leader may still write."""

import json
from collections.abc import Iterable
from typing import Any

import psycopg
import pytest

from supervisor import NewEvent, publish, publish_many
from supervisor.db import outbox
from supervisor.db.outbox import Lead, Row, Snapshot
from tests.support.database import Database
from tests.support.sizes import FULL

Conn = psycopg.AsyncConnection[Any]
SCHEMA = "supervisor"
EVENTS = 200_000 if FULL else 20_000


async def lead(conn: Conn, relay: int = 1, lease_s: float = 60.0) -> dict[int, Lead]:
    led = await outbox.lead_parts(
        conn, SCHEMA, relay=relay, name="r", host="h", pid=1, version="0", broker="b", leaving=False, waiting=False,
        detail={}, lease_s=lease_s,
    )  # fmt: skip
    return {one.part: one for one in led}


async def look(
    conn: Conn, positions: dict[int, int], since: Snapshot | None = None, limit: int = 10_000
) -> tuple[Snapshot, list[Row]]:
    """One look, and positions moved by what it found."""
    snapshot, rows = await outbox.read_outbox(
        conn, SCHEMA, positions=list(positions.items()), each=limit, limit=limit, since=since, most_late=1000
    )
    for row in rows:
        if not row.late:
            positions[row.part] = max(positions[row.part], row.id)
    return snapshot, rows


def everywhere() -> dict[int, int]:
    return dict.fromkeys(range(64), -1)


@pytest.mark.pg("15", "16", "18")
async def test_a_row_below_the_position_is_found_as_soon_as_it_is_committed(db: Database) -> None:
    """However many looks there were meanwhile, and whatever the order of commits."""
    async with await db.aconnect() as conn:
        positions = everywhere()
        slow = [db.connect(autocommit=False) for _ in range(3)]
        late = [publish(one, "t", {"n": n}, key="k") for n, one in enumerate(slow)]
        early = publish(db.connect(), "t", {}, key="k")
        seen, rows = await look(conn, positions)
        assert [row.id for row in rows] == [early.id]
        for turn in (1, 0):
            slow[turn].commit()
            seen, rows = await look(conn, positions, seen)
            assert [row.id for row in rows] == [late[turn].id]
            seen, rows = await look(conn, positions, seen)
            assert rows == []
        slow[2].rollback()
        seen, rows = await look(conn, positions, seen)
        assert rows == []


async def test_a_replayed_event_is_found_at_its_old_place(db: Database) -> None:
    async with await db.aconnect() as conn:
        await lead(conn)
        first = publish(db.connect(), "t", {"n": 1}, key="k")
        positions = everywhere()
        seen, [row] = await look(conn, positions)
        await outbox.refuse_events(
            conn, SCHEMA, relay=1, events=[(row.part, 1, row.id, "no")], max_attempts=1, base_s=1, cap_s=1
        )
        publish(db.connect(), "t", {"n": 2}, key="k")
        seen, _ = await look(conn, positions, seen)
        assert db.value("select supervisor.replay_events(%s)", [[first.id]]) == first.id
        _, [back] = await look(conn, positions, seen)
        assert (back.id, back.late, back.attempts, back.event_id) == (first.id, True, 0, str(first.event_id))


async def test_a_former_leader_changes_nothing(db: Database) -> None:
    """Its token matches no more: neither what it confirms nor what it refuses counts."""
    async with await db.aconnect() as conn:
        old = await lead(conn, relay=1, lease_s=0.05)
        one = publish(db.connect(), "t", {}, key="k")
        [(part,)] = db.rows("select part from supervisor.outbox")
        db.wait_for("select expires_at < clock_timestamp() from supervisor.relay where id = 1", True)
        new = await lead(conn, relay=2)
        assert len(new) == 64
        assert new[part].token == old[part].token + 1
        event = (part, old[part].token, one.id)
        assert await outbox.confirm_events(conn, SCHEMA, relay=1, events=[event], keep=True, keep_payload=False) == 0
        refused = [(*event, "no")]
        assert await outbox.refuse_events(
            conn, SCHEMA, relay=1, events=refused, max_attempts=1, base_s=1, cap_s=1
        ) == []  # fmt: skip
        await outbox.raise_low(conn, SCHEMA, relay=1, lows=[(part, old[part].token, 10**6)])
        assert db.rows("select attempts from supervisor.outbox") == [(0,)]
        assert db.value("select max(low) from supervisor.outbox_part") == 0
        event = (part, new[part].token, one.id)
        assert await outbox.confirm_events(conn, SCHEMA, relay=2, events=[event], keep=True, keep_payload=True) == 1
        assert db.rows("select id, payload from supervisor.outbox_sent") == [(one.id, {})]


def pages(db: Database, call: str) -> int:
    """Pages that a call touches; what it did is undone."""
    conn = db.connect(autocommit=False)
    for _ in range(2):  # the first call plans, which reads catalogs
        row = conn.execute(f"explain (analyze, buffers, format json) {call}".encode()).fetchone()
        conn.rollback()
    assert row is not None
    plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
    return int(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])


def array(values: Iterable[int]) -> str:
    return f"'{{{','.join(map(str, values))}}}'"


def cost_of_look(db: Database, positions: dict[int, int], since: Snapshot) -> int:
    return pages(
        db,
        f"select * from supervisor.read_outbox({array(positions)}, {array(positions.values())}, 500, 500,"
        f" {array(since.open or {3})}, '{since.next}', 2000)",
    )


def cost_of_confirming(db: Database, led: dict[int, Lead]) -> int:
    """Ten events that were just added."""
    publish_many(db.connect(), [NewEvent("probe", key=f"probe{n}") for n in range(10)])
    rows = db.rows("select part, id from supervisor.outbox where topic = 'probe' order by id desc limit 10")
    tokens = [led[part].token for part, _ in rows]
    return pages(
        db,
        f"select * from supervisor.confirm_events(1, {array(part for part, _ in rows)}, {array(tokens)},"
        f" {array(each for _, each in rows)}, false, false)",
    )


@pytest.mark.parametrize("statistics", ["absent", "fresh", "misleading"])
async def test_a_look_costs_the_same_under_an_old_snapshot(db: Database, statistics: str) -> None:
    """Thousands published since it was taken, none of them vacuumed away: pages per look, first against last."""
    db.execute("alter table supervisor.outbox set (autovacuum_enabled = off)")
    if statistics == "misleading":
        db.execute("vacuum analyze supervisor.outbox")
    pin = db.connect(autocommit=False)
    pin.execute("set transaction isolation level repeatable read")
    pin.execute("select count(*) from supervisor.outbox")
    conn = db.connect()
    async with await db.aconnect() as reader:
        led = await lead(reader)
        positions = everywhere()
        seen: Snapshot | None = None

        async def drain() -> Snapshot:
            snapshot, rows = await look(reader, positions, seen)
            events = [(row.part, led[row.part].token, row.id) for row in rows]
            await outbox.confirm_events(reader, SCHEMA, relay=1, events=events, keep=False, keep_payload=False)
            return snapshot

        publish_many(conn, [NewEvent("t", key=f"k{n}") for n in range(500)])
        seen = await drain()
        if statistics == "fresh":
            db.execute("vacuum analyze supervisor.outbox")
        first = (cost_of_look(db, positions, seen), cost_of_confirming(db, led))
        for _ in range(EVENTS // 2000):
            publish_many(conn, [NewEvent("t", key=f"k{n}") for n in range(2000)])
            seen = await drain()
        scans = "select seq_scan::int from pg_stat_user_tables where relname = 'outbox'"
        before = db.value(scans)
        last = (cost_of_look(db, positions, seen), cost_of_confirming(db, led))
        # One level of the index more, and the ends of what each part had.
        assert last[0] <= 1.5 * first[0] + 20, (first, last)
        assert last[1] <= 1.5 * first[1] + 40, (first, last)
        assert db.value(scans) - before <= 1, "more than this test's own question read the whole table"
        from_the_start = cost_of_look(db, everywhere(), seen)
        assert from_the_start > 3 * last[0], "the snapshot keeps nothing alive: this test shows nothing"
