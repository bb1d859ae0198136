"""Roles whose transactions are serializable or repeatable read by default (B19)."""

import asyncio
from functools import partial

import psycopg
import pytest

from supervisor.db import jobs
from supervisor.db.jobs import Ack, Lane, Mark, Settlement
from supervisor.db.link import Link, connect
from supervisor.db.pools import HandlerPools
from supervisor.outcome import Outcome
from tests.support.database import Database
from tests.support.queue import Holder, enqueue, new_session_id, settle, work
from tests.support.waiting import wait_until

LEVELS = ("serializable", "repeatable read")
SHOW = b"select current_setting('transaction_isolation')"


@pytest.fixture(params=LEVELS)
def strict(db: Database, request: pytest.FixtureRequest) -> Database:
    """A database whose every new session has the level."""
    db.execute(f"alter role current_user in database {db.name} set default_transaction_isolation = '{request.param}'")
    with psycopg.connect(db.conninfo) as conn:
        assert conn.execute(SHOW).fetchone() == (request.param,)
    return db


async def test_connections_of_the_service_have_the_level_that_it_needs(strict: Database) -> None:
    async with await connect(strict.conninfo, statement_timeout_s=15, connect_timeout_s=5) as conn:
        assert await (await conn.execute(SHOW)).fetchone() == ("read committed",)
        async with conn.transaction():
            assert await (await conn.execute(SHOW)).fetchone() == ("read committed",)
    pools = HandlerPools(strict.conninfo, name="t", size=1, timeout_s=5, connect_timeout_s=5)
    try:
        async with pools.connection() as lent:
            assert await (await lent.execute(SHOW)).fetchone() == ("read committed",)
        with pools.sync_pool().connection() as sync:
            assert sync.execute(SHOW).fetchone() == ("read committed",)
    finally:
        await pools.close()


@pytest.mark.parametrize("level", LEVELS)
def test_work_and_settle_refuse_another_level_before_they_touch_anything(db: Database, level: str) -> None:
    """With an old snapshot they would claim what others hold, or fail half of the time."""
    [job] = enqueue(db.connect())
    holder = Holder(db)
    [held] = holder.claim().jobs
    conn = db.connect()
    conn.execute(f"set default_transaction_isolation = '{level}'".encode())
    with pytest.raises(psycopg.Error, match=f"needs READ COMMITTED, not {level}") as error:
        work(conn, holder.session, 1, acks=[held])
    assert error.value.sqlstate == "QS002"
    with pytest.raises(psycopg.Error, match=f"needs READ COMMITTED, not {level}") as error:
        settle(conn, holder.session, [held], "failed")
    assert error.value.sqlstate == "QS002"
    assert db.rows("select id, lease from supervisor.job") == [(job, holder.session)]


async def test_a_thousand_jobs_run_once_each_for_a_role_that_is_strict_by_default(strict: Database) -> None:
    """B19: four workers with links of their own; nothing is refused, nothing is left for the reaper."""
    with psycopg.connect(strict.conninfo) as conn:
        conn.execute("insert into supervisor.job (kind) select 'k' from generate_series(1, 1000)")
    claimed: list[int] = []
    retried: set[int] = set()
    lanes = [Lane("default", 0)]

    async def worker(number: int) -> None:
        link = Link(strict.conninfo, name=f"w{number}", statement_timeout_s=15, connect_timeout_s=5)
        session, acks = new_session_id(), list[Ack]()
        await link.call(
            lambda conn: jobs.open_session(conn, strict.schema, session=session, parent=1, name="w", lease_s=60)
        )
        idle = 0
        while idle < 3 or acks:
            answer = await link.call(
                partial(
                    jobs.work,
                    schema=strict.schema,
                    session=session,
                    acks=acks,
                    keep=1,
                    lanes=lanes,
                    marks=[Mark()],
                    limit=7,
                )
            )
            assert answer.lost == []
            idle = 0 if answer.jobs else idle + 1
            failing = [job for job in answer.jobs if job.id % 10 == 0 and job.attempt == 1]
            acks = [Ack(job.id, job.token, 0.001) for job in answer.jobs if job not in failing]
            claimed.extend(ack.id for ack in acks)
            if failing:
                ends = [Settlement(job.id, job.token, Outcome("failed", "E", 0.0)) for job in failing]
                settled = await link.call(
                    partial(
                        jobs.settle, schema=strict.schema, session=session, settlements=ends, keep=1, unknown_limit_s=60
                    )
                )
                assert len(settled) == len(failing)
                retried.update(job.id for job in failing)
        await link.call(lambda conn: jobs.close_session(conn, strict.schema, session=session))
        await link.close()

    await asyncio.gather(*(worker(number) for number in range(4)))
    assert sorted(claimed) == sorted(set(claimed))
    assert len(claimed) == 1000
    assert len(retried) == 100
    wait_until(lambda: strict.value("select count(*)::int from supervisor.history") == 1000, 5, "all are done")
    assert strict.value("select count(*)::int from supervisor.job") == 0
