"""Vacuums on the supervisor's own account: what is due, what they bring, and when the table is left alone."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
import structlog

import supervisor.db.vacuum as tables
from supervisor import exits
from supervisor.db.link import Link
from supervisor.parent.guard import Guard
from supervisor.parent.health import HealthState
from supervisor.parent.rest import Rest
from supervisor.parent.vacuum import LOOK_S, Vacuum
from supervisor.settings import Settings
from tests.support.database import Database
from tests.support.jobs import enqueue, wait_done
from tests.support.roles import Roles
from tests.support.service import Service

DEAD = 2_000
SEEN_S = 15.0  # a session tells what it has done when it is idle for a while, or ends


def link(address: str, name: str) -> Link:
    return Link(address, name=name, statement_timeout_s=60, connect_timeout_s=5)


@asynccontextmanager
async def vacuuming(address: str, **flags: Any) -> AsyncIterator[Vacuum]:
    shared = link(address, "test shared")
    settings = Settings.load(database_url=address, **{"vacuum_rows": DEAD // 2, **flags})
    try:
        yield Vacuum(
            shared,
            lambda: link(address, "test vacuum"),
            settings,
            guard=Guard(HealthState()),
            rest=Rest(listening=lambda: False),
        )
    finally:
        await shared.close()


def kill_rows(db: Database, count: int = DEAD, live: int = 10) -> None:
    """*count* dead rows in the job table, which the server's statistics know of, and some that live."""
    db.execute("alter table supervisor.job set (autovacuum_enabled = off)")
    with psycopg.connect(db.conninfo, autocommit=True) as conn:  # closed: what it did is counted then
        conn.execute("insert into supervisor.job (kind) select 'k' from generate_series(1, %s)", [count + live])
        conn.execute("delete from supervisor.job where id <= %s", [count])
    db.wait_for("select pg_stat_get_dead_tuples('supervisor.job'::regclass)", count, SEEN_S)


def dead(db: Database) -> int:
    return int(db.value("select pg_stat_get_dead_tuples('supervisor.job'::regclass)"))


@pytest.mark.pg("15", "18")
async def test_dead_rows_go_and_the_connection_with_them(db: Database) -> None:
    kill_rows(db)
    async with vacuuming(db.conninfo) as one:
        await one.look()
        assert one.pause_s == LOOK_S
        assert db.value("select vacuum_count::int from pg_stat_user_tables where relname = 'job'") == 1
        assert dead(db) == 0
        assert db.server_sessions("test vacuum") == []
        await one.look()  # nothing is due any more
    assert db.value("select vacuum_count::int from pg_stat_user_tables where relname = 'job'") == 1
    assert db.value("select count(*)::int from supervisor.job") == 10


async def test_few_dead_rows_among_many_are_left(db: Database) -> None:
    """Of a long backlog a tenth may be dead besides: its whole index is read for them."""
    kill_rows(db, count=DEAD, live=12 * DEAD)
    async with await db.aconnect() as conn:
        assert await tables.worn(conn, db.schema, dead_rows=DEAD, share=0.1) == []
        assert [one.table for one in await tables.worn(conn, db.schema, dead_rows=DEAD // 2, share=0.01)] == ["job"]


async def test_rows_that_an_old_snapshot_keeps_are_tried_for_ever_more_rarely(db: Database) -> None:
    with db.connect(autocommit=False) as old:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select from supervisor.job")
        kill_rows(db)
        with structlog.testing.capture_logs() as lines:
            async with vacuuming(db.conninfo) as one:
                for pause in (2 * LOOK_S, 4 * LOOK_S):
                    await one.look()
                    assert one.pause_s == pause
                told = [line for line in lines if line["event"] == "vacuum.in_vain"]
                assert [(line["table"], line["dead_rows"], line["left"]) for line in told] == [("job", DEAD, DEAD)]
                old.rollback()
                await one.look()
                assert one.pause_s == LOOK_S
    assert dead(db) == 0


async def test_who_may_not_says_so_once_and_leaves_it(db: Database, roles: Roles) -> None:
    kill_rows(db)
    with structlog.testing.capture_logs() as lines:
        async with vacuuming(roles.login("reader")) as one:
            await one.look()
            await one.look()
    assert [(line["event"], line["table"]) for line in lines] == [("vacuum.refused", "job")]
    assert dead(db) == DEAD


@pytest.mark.pg("18")
async def test_the_role_of_a_worker_may(db: Database, roles: Roles) -> None:
    kill_rows(db)
    async with vacuuming(roles.login("worker")) as one:
        await one.look()
    assert dead(db) == 0


async def test_another_vacuum_is_not_waited_for(db: Database) -> None:
    kill_rows(db)
    with db.connect(autocommit=False) as other, structlog.testing.capture_logs() as lines:
        other.execute("lock table supervisor.job in share update exclusive mode")  # what a vacuum holds
        async with vacuuming(db.conninfo) as one, asyncio.timeout(10):
            await one.look()
            assert one.pause_s == LOOK_S
    assert lines == []
    assert dead(db) == DEAD


async def test_left_to_the_server_nothing_runs(db: Database) -> None:
    async with vacuuming(db.conninfo, vacuum_rows=0) as one:
        await one.run()  # returns


@pytest.mark.timeout(120)
def test_a_busy_service_vacuums_and_loses_nothing(db: Database, service: Callable[..., Service]) -> None:
    db.execute("alter table supervisor.job set (autovacuum_enabled = off)")
    one = service(processes=2, concurrency=10, vacuum_rows=500)
    done = 0
    deadline = time.monotonic() + 60
    while not db.value("select vacuum_count::int from pg_stat_user_tables where relname = 'job'"):
        assert time.monotonic() < deadline
        enqueue(db, "t.noop", count=500 + random.randrange(100))
        done = db.value("select last_value::int from supervisor.job_id_seq")
        db.wait_for("select count(*)::int from supervisor.job", 0, 30)
    wait_done(db, done, 30)
    assert one.stop() == exits.OK
    assert db.server_sessions() == []
