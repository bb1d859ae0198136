"""The service's own connections: statements prepared once, and nobody waits for an answer he gave up."""

import asyncio
import time

import psycopg
import pytest

from supervisor.db import jobs
from supervisor.db.house import HouseConnection, Prepared, prepared
from tests.support.database import Database

ECHO = Prepared("echo", b"select $1::bigint, $2::text, $3::timestamptz", ("number", "text", "at"))


async def connect(db: Database) -> HouseConnection:
    return await HouseConnection.connect(db.conninfo, autocommit=True)


async def statements(conn: HouseConnection) -> list[str]:
    found = await conn.execute("select name from pg_prepared_statements order by prepare_time")
    return [name for (name,) in await found.fetchall()]


async def test_a_statement_is_prepared_once(db: Database) -> None:
    async with await connect(db) as conn:
        for number in (1, None, 3):
            [(found, text, at)] = await conn.fetch(ECHO, {"number": number, "text": 'a"b', "at": "epoch"})
            assert (found, text, at.timestamp()) == (number, 'a"b', 0.0)
        assert await statements(conn) == ["echo 1"]


async def test_behind_a_pooler_nothing_is_prepared(db: Database) -> None:
    async with await connect(db) as conn:
        conn.prepare_threshold = None
        assert (await conn.fetch(ECHO, {"number": 7, "text": "", "at": "epoch"}))[0][0] == 7
        assert await statements(conn) == []


async def test_a_statement_that_was_forgotten_is_prepared_anew(db: Database) -> None:
    async with await connect(db) as conn:
        await conn.fetch(ECHO, {"number": 7, "text": "", "at": "epoch"})
        await conn.execute("deallocate all")
        with pytest.raises(psycopg.errors.InvalidSqlStatementName):
            await conn.fetch(ECHO, {"number": 7, "text": "", "at": "epoch"})
        assert (await conn.fetch(ECHO, {"number": 8, "text": "", "at": "epoch"}))[0][0] == 8


async def test_so_is_one_whose_rows_have_changed(db: Database) -> None:
    async with await connect(db) as conn:
        await conn.execute("create table public.shape (a int)")
        await conn.execute("insert into public.shape values (1)")
        look = Prepared("look", b"select * from public.shape", ())
        assert await conn.fetch(look, {}) == [(1,)]
        await conn.execute("alter table public.shape add b int default 2")
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            await conn.fetch(look, {})
        assert await conn.fetch(look, {}) == [(1, 2)]


async def test_what_the_server_refuses_leaves_the_connection_usable(db: Database) -> None:
    async with await connect(db) as conn:
        with pytest.raises(psycopg.DatabaseError) as caught:
            await jobs.work(conn, "supervisor", session=404, keep=1)
        assert caught.value.sqlstate == "QS001"
        assert (await conn.fetch(ECHO, {"number": 1, "text": "", "at": "epoch"}))[0][0] == 1


async def test_who_is_told_to_stop_waiting_waits_no_longer(db: Database) -> None:
    """The driver would cancel the statement and wait for that: a frozen server answers neither."""
    async with await connect(db) as conn:
        sleep = Prepared("sleep", b"select pg_sleep($1)", ("s",))
        waiting = asyncio.create_task(conn.fetch(sleep, {"s": 60}))
        pid = conn.info.backend_pid
        watch = db.connect()
        deadline = time.monotonic() + 10
        while watch.execute("select state from pg_stat_activity where pid = %s", [pid]).fetchone() != ("active",):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(waiting, 1.0)
        assert conn.closed


def test_parameters_are_numbered_by_their_first_place() -> None:
    made = prepared("work", "supervisor")
    assert made.parameters[0] == "session"
    assert b"%(" not in made.text
    assert len(made.parameters) == len(set(made.parameters)) == made.text.count(b"$")
