"""The dashboard's connections: few, bounded in time, unable to change anything unless told to."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from supervisor.db import browse, desk, operate, overview
from supervisor.db.browse import Search
from supervisor.db.desk import Conn, Desk
from supervisor.db.operate import Filter, StatementRefused
from supervisor.errors import DatabaseUnavailable
from tests.support.database import Database
from tests.support.jobs import enqueue
from tests.support.pgbouncer import PgBouncer
from tests.support.sizes import within
from tests.support.waiting import wait_until_async

MINE = "pg-supervisor dashboard"


@asynccontextmanager
async def opened(conninfo: str, **options: Any) -> AsyncIterator[Desk]:
    one = Desk(conninfo, "supervisor", **{"statement_timeout_s": 1.0, "connect_timeout_s": 2.0, **options})
    try:
        yield one
    finally:
        await one.close()


def sleep(conn: Conn, _: str, seconds: float) -> int:
    conn.execute("select pg_sleep(%s)", [seconds])
    return conn.info.backend_pid


def pause(conn: Conn, _: str) -> None:
    conn.execute("select supervisor.pause_queue('mail')")


async def test_a_look_can_change_nothing(db: Database) -> None:
    async with opened(db.conninfo) as one:
        with pytest.raises(StatementRefused) as refused:
            await one.look(pause)
        assert refused.value.sqlstate == "25006"
        await one.order(pause)
    async with opened(db.conninfo, read_only=True) as one:
        with pytest.raises(StatementRefused):
            await one.order(pause)
    assert db.value("select count(*)::int from supervisor.queue") == 1


async def test_connections_are_few_and_go_when_nobody_asks(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "_IDLE_S", 0.3)
    async with opened(db.conninfo, size=3) as one:
        pids = await asyncio.gather(*(one.look(sleep, 0.05) for _ in range(20)))
        assert 1 <= len(set(pids)) <= 3
        await wait_until_async(lambda: not db.server_sessions(MINE), 10, "idle connections are closed")
        assert await one.look(sleep, 0.0) not in pids


async def test_a_question_has_a_limit_and_costs_nobody_else_an_answer(db: Database) -> None:
    async with opened(db.conninfo, size=1) as one:
        began = time.monotonic()
        with pytest.raises(StatementRefused) as refused:
            await one.look(sleep, 30.0)
        assert (refused.value.sqlstate, time.monotonic() - began < within(2.5, busy_s=9)) == ("57014", True)
        slow = asyncio.create_task(one.look(sleep, 0.9))
        assert await one.look(sleep, 0.0) == await slow, "the same connection, one after the other"


async def test_who_waits_too_long_for_a_turn_is_told(db: Database) -> None:
    def slowly(conn: Conn, schema: str) -> None:
        for _ in range(5):
            conn.execute("select pg_sleep(0.8)")

    async with opened(db.conninfo, size=1) as one:
        busy = asyncio.create_task(one.look(slowly))
        await asyncio.sleep(0)
        with pytest.raises(DatabaseUnavailable, match="1 other questions were under way"):
            await one.look(sleep, 0.0)
        await busy


async def test_connections_that_the_server_has_ended_are_not_used(db: Database) -> None:
    async with opened(db.conninfo) as one:
        first = await one.look(sleep, 0.0)
        db.terminate_sessions(MINE)
        await wait_until_async(lambda: not db.server_sessions(MINE), 5, "the server has ended it")
        assert await one.look(sleep, 0.0) != first


async def test_an_order_that_fails_leaves_nothing_behind(db: Database) -> None:
    """A retry whose unique key is taken: told as such, and the connection goes on."""
    job = db.value("insert into supervisor.job (kind, unique_key) values ('k', 'u') returning id")
    db.execute("select supervisor.bury(%s, 'dead', 'attempts')", [job])
    other = db.value("insert into supervisor.job (kind) values ('k') returning id")
    db.execute("select supervisor.bury(%s, 'dead', 'attempts')", [other])
    db.execute("insert into supervisor.job (kind, unique_key) values ('k', 'u')")
    async with opened(db.conninfo, size=1) as one:
        assert await one.order(operate.retry, [job]) == ([], [job])
        assert await one.order(operate.retry, [job, other]) == ([other], [job])
        assert await one.look(operate.show_job, other) is not None


async def test_behind_a_transaction_pooler(db: Database) -> None:
    """Nothing that is set or prepared is left in a session that the next transaction does not meet."""
    enqueue(db, "k", count=30)
    with PgBouncer(db.server) as pooler:
        async with opened(pooler.conninfo(db.name)) as one:
            search = Search(Filter(("queued",), "default"))
            for _ in range(8):
                pages = await asyncio.gather(*(one.look(browse.page, search, limit=20) for _ in range(4)))
                assert {len(page.rows) for page in pages} == {20}
                await one.look(overview.depths)
            with pytest.raises(StatementRefused):
                await one.look(sleep, 30.0)
        with psycopg.connect(pooler.conninfo(db.name), autocommit=True, prepare_threshold=None) as conn:
            shown = conn.execute(
                "select current_setting('statement_timeout'), current_setting('transaction_read_only')"
            )
            assert shown.fetchone() == ("0", "off")
