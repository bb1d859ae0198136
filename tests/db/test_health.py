"""What the database says of itself: sizes, dead rows, bloat, who holds back vacuum, and bounded depths."""

import time
from typing import Any

import psycopg
import pytest

from supervisor.db import health
from supervisor.db.health import HolderKind, TableHealth
from supervisor.db.statements import statement
from tests.support.database import Database
from tests.support.servers import Server
from tests.support.sizes import within

pytestmark = pytest.mark.pg("15", "16", "18")


async def look(db: Database) -> TableHealth:
    async with await db.aconnect(application_name="doctor") as conn:
        return await health.table_health(conn, db.schema)


def insert(db: Database, count: int, *, queue: str = "default", due_in_s: int = -60) -> None:
    db.execute(
        "insert into supervisor.job (kind, queue, run_at, payload)"
        " select 'k', %s, clock_timestamp() + make_interval(secs => %s), jsonb_build_object('n', n)"
        " from generate_series(1, %s) n",
        [queue, due_in_s, count],
    )
    db.execute("select pg_stat_force_next_flush()")


async def test_each_table_is_there_and_the_partitions_of_the_history_are_one(db: Database) -> None:
    found = await look(db)
    names = [table.name for table in found.tables]
    assert {"job", "history", "dead_letter", "session", "lane", "parent", "waiting", "tally"} <= set(names)
    assert not [name for name in names if name.startswith("history_")]
    assert {index.name for index in found.indexes} >= {"job_pkey", "job_lane", "job_unique", "dead_letter_finished"}
    assert all(index.valid for index in found.indexes)
    assert 0 <= found.notification_queue < 0.01
    assert 0 < found.connections <= found.max_connections
    assert found.autovacuum
    assert abs(found.server_now - time.time()) < 5


async def test_a_full_table_has_little_bloat_and_an_emptied_one_is_all_bloat(db: Database) -> None:
    """The estimate stands on the server's statistics: what it says must be near what is so."""
    db.execute("alter table supervisor.job set (autovacuum_enabled = off)")
    insert(db, 20_000)
    db.execute("vacuum analyze supervisor.job")
    full = await look(db)
    job = full.table("job")
    assert job is not None
    assert job.bloat_bytes is not None
    assert 19_000 <= job.rows <= 21_000
    assert job.bytes > 2**20
    assert job.bloat_bytes < 0.25 * job.bytes, "rows that are there are no bloat"
    assert job.vacuumed_at is not None
    assert job.analyzed_at is not None
    lane = next(index for index in full.indexes if index.name == "job_lane")
    assert lane.bloat_bytes is not None
    assert lane.bloat_bytes < 0.4 * lane.bytes

    db.execute("delete from supervisor.job")
    db.execute("select pg_stat_force_next_flush()")

    db.wait_for(
        "select n_dead_tup > 19000 and n_live_tup < 1000 from pg_stat_all_tables"
        " where relid = 'supervisor.job'::regclass",
        True,
    )
    emptied = await look(db)
    job = emptied.table("job")
    assert job is not None
    assert job.bloat_bytes is not None
    assert job.bloat_bytes > 0.9 * job.bytes
    lane = next(index for index in emptied.indexes if index.name == "job_lane")
    assert lane.bloat_bytes is not None
    assert lane.bloat_bytes > 0.9 * lane.bytes


async def test_a_table_that_was_never_analyzed_has_no_estimate(db: Database) -> None:
    db.execute("alter table supervisor.job set (autovacuum_enabled = off)")
    insert(db, 100)
    job = (await look(db)).table("job")
    assert job is not None
    assert job.bloat_bytes is None


async def test_who_holds_back_vacuum_is_named_without_what_it_asks(db: Database) -> None:
    with db.connect(autocommit=False, application_name="nightly report") as reader:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select 'a secret', count(*) from supervisor.job")
        db.execute("select pg_current_xact_id()")  # transactions go on meanwhile
        db.execute("select pg_current_xact_id()")
        found = await look(db)
        holder = next(one for one in found.holders if one.name == "nightly report")
        assert (holder.kind, holder.owner, holder.state) == (HolderKind.SESSION, "session", "idle in transaction")
        assert holder.pid == reader.info.backend_pid
        assert holder.age_s is not None
        assert 0 <= holder.age_s < 30
        assert holder.xids is not None
        assert holder.xids >= 2
        assert found.oldest == holder
        assert "secret" not in repr(found)
    after = await look(db)
    assert not [one for one in after.holders if one.name == "nightly report"]


async def test_a_writer_that_idles_in_a_transaction_holds_back_too(db: Database) -> None:
    """At READ COMMITTED it has no snapshot between statements, but its own rows cannot be judged yet."""
    with db.connect(autocommit=False, application_name="pg-supervisor handler") as writer:
        writer.execute("insert into effects (job_id, kind, attempt, pid) values (1, 'k', 1, 1)")
        [holder] = [one for one in (await look(db)).holders if one.pid == writer.info.backend_pid]
        assert holder.owner == "supervisor"


async def test_a_prepared_transaction_and_a_slot_are_seen(db: Database, server: Server) -> None:
    with db.connect(autocommit=False) as conn:
        conn.execute("insert into effects (job_id, kind, attempt, pid) values (1, 'k', 1, 1)")
        conn.execute("prepare transaction 'forgotten'")
    server.execute("select pg_create_physical_replication_slot('left_behind', true)")
    try:
        found = await look(db)
        [prepared] = [one for one in found.holders if one.kind is HolderKind.PREPARED]
        assert (prepared.name, prepared.owner) == ("forgotten", "prepared")
        assert prepared.age_s is not None
        assert prepared.age_s >= 0
        slot = next(one for one in found.slots if one.name == "left_behind")
        assert (slot.type, slot.active) == ("physical", False)
        assert slot.retained_bytes is not None
        assert slot.retained_bytes >= 0
    finally:
        server.execute("select pg_drop_replication_slot('left_behind')")
        db.execute("rollback prepared 'forgotten'")


async def test_an_index_that_a_failed_build_left_is_invalid(db: Database) -> None:
    with db.connect() as conn:
        conn.execute("insert into supervisor.lane (queue, priority) values ('a', 0), ('a', 1)")
        with pytest.raises(psycopg.errors.UniqueViolation):
            conn.execute("create unique index concurrently broken on supervisor.lane (queue)")
    [broken] = [index for index in (await look(db)).indexes if index.name == "broken"]
    assert not broken.valid


async def test_depths_are_counted_up_to_a_limit_however_many_there_are(db: Database) -> None:
    insert(db, health.MOST_COUNTED + 500)
    insert(db, 7, queue="later", due_in_s=3600)
    db.execute(
        "insert into supervisor.lane (queue, priority) values ('default', 0), ('later', 0) on conflict do nothing"
    )
    db.execute(
        "with s as (insert into supervisor.session (id, expires_at) values (1, 'infinity') returning id)"
        " update supervisor.job set lease = s.id, claims = 1, started_at = clock_timestamp() - interval '1 min' from s"
        " where job.id in (select id from supervisor.job where queue = 'default' order by id limit 3)"
    )
    async with await db.aconnect() as conn:
        began = time.monotonic()
        found = await health.depths(conn, db.schema)
        took = time.monotonic() - began
    by_queue = {depth.queue: depth for depth in found.queues}
    assert by_queue["default"].due == health.MOST_COUNTED == found.limit
    assert by_queue["default"].running == 3
    assert 50 < (by_queue["default"].oldest_running_s or 0) < 90
    assert 50 < (by_queue["default"].oldest_due_s or 0) < 90
    assert (by_queue["later"].scheduled, by_queue["later"].due, by_queue["later"].oldest_due_s) == (7, 0, None)
    assert took < within(2, busy_s=8)


async def test_with_many_lanes_each_is_counted_less_far(db: Database) -> None:
    db.execute("insert into supervisor.lane (queue, priority) select 'q' || n, 0 from generate_series(1, 3000) n")
    async with await db.aconnect() as conn:
        found = await health.depths(conn, db.schema)
    assert (found.lanes, found.limit, len(found.queues)) == (3000, health.LEAST_COUNTED, 3000)


def rows_read(plan: dict[str, Any]) -> int:
    """Rows of `job` that a plan has read, those that a filter dropped included; fails on a scan of all of it."""
    total = 0
    if plan.get("Relation Name") == "job":
        assert plan["Node Type"].startswith("Index"), plan["Node Type"]
        total = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    return round(total) + sum(rows_read(child) for child in plan.get("Plans", []))


@pytest.mark.parametrize("statistics", ["absent", "fresh"])
def test_looking_at_depths_reads_no_more_than_its_limit_however_many_jobs_wait(db: Database, statistics: str) -> None:
    """Ten million queued must cost a look no more than thousands: what is read is counted, not timed."""
    db.execute("alter table supervisor.job set (autovacuum_enabled = off)")
    insert(db, 60_000)
    insert(db, 60_000, due_in_s=3600)
    db.execute("insert into supervisor.lane (queue, priority) values ('default', 0) on conflict do nothing")
    if statistics == "fresh":
        db.execute("analyze supervisor.job")
    limit = 1000
    with db.connect(autocommit=False) as conn:
        conn.execute(health._PLANS)
        for name, most in (("lane_depths", 2 * limit), ("health_running", limit)):
            asked = b"explain (analyze, format json) " + statement(name, "supervisor")
            [[[answer]]] = conn.execute(asked, {"limit": limit}).fetchall()
            assert rows_read(answer["Plan"]) <= most + 2, name
