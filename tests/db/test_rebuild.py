"""Bloated indexes rebuilt, look by look: when, when not, and what is left behind when it fails."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg
import pytest
from structlog.testing import capture_logs

from supervisor.db.link import Link
from supervisor.parent.guard import Guard
from supervisor.parent.health import HealthState
from supervisor.parent.rebuild import Rebuilder
from supervisor.parent.rebuild_turn import Limits
from supervisor.parent.rest import Rest
from supervisor.settings import Settings
from tests.support.bloat import SESSION, bloat, left, remembered, sizes, under_way, vacuum
from tests.support.database import Database
from tests.support.pgbouncer import PgBouncer
from tests.support.roles import Roles
from tests.support.servers import Server
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.pg("15", "18")

# Nothing old is waited for long.
HASTY: Final = Limits(old_s=0.0, patience_s=0.2, step_s=0.05, lock_s=0.5)
# Whatever there is counts as young: the rebuild begins and meets it.
BLIND: Final = Limits(old_s=3600, patience_s=0.2, step_s=0.05, lock_s=0.5)
HELD: Final = {
    "a snapshot": ["set transaction isolation level repeatable read", "select count(*) from effects"],
    "a reader": ["select id from supervisor.job limit 1"],
    "a writer": ["insert into supervisor.job (kind) values ('t.noop')"],
}


@asynccontextmanager
async def rebuilding(
    db: Database, address: str | None = None, *, limits: Limits = HASTY, **flags: Any
) -> AsyncIterator[Rebuilder]:
    """A supervisor's rebuilder, which looks when it is told to."""
    address = address or db.conninfo
    link = Link(address, name="test shared", statement_timeout_s=15, connect_timeout_s=5)
    settings = Settings.load(**{"database_url": address, "rebuild_indexes_mb": 1, **flags})
    try:
        yield Rebuilder(
            link,
            settings,
            address,
            guard=Guard(HealthState()),
            rest=Rest(listening=lambda: True),
            limits=limits,
        )
    finally:
        await link.close()


def hold(db: Database, what: str) -> psycopg.Connection[tuple[Any, ...]]:
    """A transaction that stays open."""
    conn = db.connect(autocommit=False, application_name="nightly report")
    for words in HELD[what]:
        conn.execute(words.encode())
    return conn


async def test_bloated_indexes_are_rebuilt_one_at_a_look_and_each_once(db: Database) -> None:
    bloat(db)
    before = sizes(db)
    async with rebuilding(db) as one:
        for number in range(1, 4):
            await one.look()
            assert len(remembered(db)) == number, "one index a look"
        with capture_logs() as log:
            await one.look()
    assert log == [], "there is nothing more to do"
    after = sizes(db)
    assert set(remembered(db)) == {"job_lane", "job_pkey", "job_unique"}
    assert set(remembered(db).values()) == {("done", 3600.0)}
    for index in remembered(db):
        assert after[index] < 0.2 * before[index]
    assert left(db) == []
    await wait_until_async(lambda: not db.server_sessions(SESSION), 5, "the connection is closed")


async def test_an_index_that_is_needed_or_small_is_left_alone(db: Database) -> None:
    """Rows that are there, dead rows that were not vacuumed, lost statistics: a rebuild would bring nothing."""
    db.execute("alter table supervisor.job set (autovacuum_enabled = off)")
    db.execute(
        "insert into supervisor.job (kind, unique_key) select 't.noop', md5(i::text) from generate_series(1, 60000) i"
    )
    vacuum(db)
    async with rebuilding(db) as one:
        await one.look()
        db.server.execute("select pg_stat_reset()", db.name)
        await one.look()
        db.execute("vacuum analyze supervisor.job")
        with db.connect(autocommit=False) as snapshot:
            snapshot.execute("set transaction isolation level repeatable read")
            snapshot.execute("select count(*) from effects")
            db.execute("delete from supervisor.job")
            db.execute("select pg_stat_force_next_flush()")
            db.wait_for(
                "select n_dead_tup > 50000 from pg_stat_all_tables where relid = 'supervisor.job'::regclass", True
            )
            await one.look()
        assert remembered(db) == {}
        vacuum(db)
    async with rebuilding(db, rebuild_indexes_mb=64) as one:
        await one.look()
    assert remembered(db) == {}, "not as large as that"
    async with rebuilding(db) as one:
        await one.look()
    assert len(remembered(db)) == 1, "the test's index was large enough"


@pytest.mark.parametrize("what", HELD)
async def test_an_old_transaction_makes_it_wait_and_nothing_is_left(db: Database, what: str) -> None:
    bloat(db)
    async with rebuilding(db) as one:
        holder = hold(db, what)
        with capture_logs() as log:
            await one.look()
        assert [(line["event"], line["name"], line["pid"]) for line in log] == [
            ("rebuild.waits", "nightly report", holder.info.backend_pid)
        ]
        assert (remembered(db), left(db)) == ({}, [])
        holder.rollback()
        await one.look()
    assert [outcome for outcome, _ in remembered(db).values()] == ["done"]


@pytest.mark.parametrize("what", HELD)
async def test_what_it_meets_ends_it_soon_and_what_it_leaves_is_dropped_first(db: Database, what: str) -> None:
    """Each phase of a concurrent rebuild waits for others; lock_timeout bounds that too."""
    bloat(db)
    before = sizes(db)
    holder = hold(db, what)
    async with rebuilding(db, limits=BLIND) as one:
        with capture_logs() as log:
            async with asyncio.timeout(10):
                await one.look()
        assert [line["event"] for line in log] == ["rebuild.begun", "rebuild.failed"]
        [(index, (outcome, wait_s))] = remembered(db).items()
        assert (outcome, wait_s) == ("failed", 600.0)
        assert [name.startswith(f"{index}_cc") for name in left(db)] == [True]
        await wait_until_async(lambda: not db.server_sessions(SESSION), 5, "the connection is closed")

        holder.rollback()
        db.execute("create index theirs_ccnew on supervisor.job (kind)")  # named like one, and of nobody's index
        db.server.execute(
            "update pg_index set indisvalid = false where indexrelid = 'supervisor.theirs_ccnew'::regclass", db.name
        )
        with capture_logs() as log:
            await one.look()
        assert log[0]["event"] == "rebuild.cleared"
        assert left(db) == ["theirs_ccnew"], "only what a rebuild of ours has left"
        assert remembered(db)[index][0] == "failed", "it is not tried again at once"

        if what == "a reader":  # which was met after the new index had taken the old one's place
            assert sizes(db)[index] < 0.2 * before[index]
            return
        db.execute("update supervisor.rebuild set next_at = now() where index_name = %s", [index])
        for _ in range(3):
            await one.look()
    assert remembered(db)[index][0] == "done"
    assert sizes(db)[index] < 0.2 * before[index]


async def test_one_in_the_cluster_at_a_time(db: Database) -> None:
    bloat(db)
    holder = hold(db, "a writer")
    slow = Limits(old_s=3600, step_s=0.05, lock_s=30)
    async with rebuilding(db, limits=slow) as one, rebuilding(db) as other:
        looking = asyncio.create_task(one.look())
        await wait_until_async(lambda: under_way(db))
        await other.look()
        await wait_until_async(lambda: len(db.server_sessions(SESSION)) == 1, 5, "the other one's connection is closed")
        assert len(remembered(db)) == 1
        holder.rollback()
        await looking
    assert [outcome for outcome, _ in remembered(db).values()] == ["done"]


async def test_it_gives_way_to_whoever_needs_the_table(db: Database) -> None:
    """A vacuum by hand, a migration: the one would wait as long as it works, the other and all claims behind it too."""
    bloat(db)
    holder = hold(db, "a writer")
    slow = Limits(old_s=3600, step_s=0.05, lock_s=30)
    async with rebuilding(db, limits=slow) as one:
        with capture_logs() as log:
            looking = asyncio.create_task(one.look())
            await wait_until_async(lambda: under_way(db))
            async with await db.aconnect(application_name="by hand") as conn, asyncio.timeout(15):
                await conn.execute("vacuum supervisor.job")
            await looking
        assert [line["event"] for line in log] == ["rebuild.begun", "rebuild.gave_way"]
        assert "by hand" in log[1]["reason"]
        holder.rollback()


async def test_a_stop_hangs_up_on_it(db: Database) -> None:
    bloat(db)
    holder = hold(db, "a writer")
    slow = Limits(old_s=3600, step_s=0.05, lock_s=30)
    async with rebuilding(db, limits=slow, watch_every_s=0.02) as one:
        running = asyncio.create_task(one.run())
        await wait_until_async(lambda: under_way(db))
        one.stop()
        await wait_until_async(lambda: not db.server_sessions(SESSION), 5, "the server has ended the statement")
        assert not running.done()
        assert [outcome for outcome, _ in remembered(db).values()] == ["begun"]
        running.cancel()
        await asyncio.wait({running})
        holder.rollback()


async def test_who_may_not_says_it_once(db: Database, roles: Roles) -> None:
    bloat(db)
    address = roles.login("reader")
    async with rebuilding(db, address) as one:
        with capture_logs() as log:
            await one.look()
            await one.look()
    [line] = log
    assert line["event"] == "rebuild.refused"
    assert "may not rebuild index" in line["reason"]
    assert "grant the tables' owner to" in line["remedy"]
    assert remembered(db) == {}


@pytest.mark.pg("18")
async def test_a_worker_may_rebuild_and_not_drop(db: Database, roles: Roles) -> None:
    bloat(db)
    address = roles.login("worker")
    async with rebuilding(db, address) as one:
        await one.look()
        assert [outcome for outcome, _ in remembered(db).values()] == ["done"]
        # Of others it cannot see since when their transactions are open: those that stay are not young.
        holder = hold(db, "a snapshot")
        with capture_logs() as log:
            await one.look()
        assert [(line["event"], line["age_s"]) for line in log] == [("rebuild.waits", None)]
        holder.rollback()
        await one.look()
    assert [outcome for outcome, _ in remembered(db).values()] == ["done", "done"]
    holder = hold(db, "a writer")
    async with rebuilding(db, limits=BLIND) as owner:
        await owner.look()
    [index] = left(db)
    holder.rollback()
    async with rebuilding(db, address) as one:
        with capture_logs() as log:
            await one.look()
            await one.look()
    assert [line["event"] for line in log] == ["rebuild.refused"], "only the owner may drop what was left"
    assert f"drop index concurrently supervisor.{index}" in log[0]["remedy"]
    assert left(db) == [index], "and no second one is made"


async def test_behind_a_pooler_it_needs_a_direct_address(db: Database, server: Server) -> None:
    bloat(db)
    with PgBouncer(server) as pooler:
        pooled = pooler.conninfo(db.name)
        async with rebuilding(db, pooled) as one:
            with capture_logs() as log:
                await one.look()
                await one.look()
        assert [line["event"] for line in log] == ["rebuild.refused"]
        assert "SUPERVISOR_LISTEN_DATABASE_URL" in log[0]["remedy"]
        assert remembered(db) == {}
        async with rebuilding(db, pooled, listen_database_url=db.conninfo) as one:
            await one.look()
    assert [outcome for outcome, _ in remembered(db).values()] == ["done"]
