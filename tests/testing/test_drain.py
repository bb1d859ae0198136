"""supervisor.testing.drain: the service's statements, in the caller's transaction, on every library's connection."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import IntegrityError, transaction
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from supervisor import Backoff, Cancel, Job, NewJob, Retry, Snooze, enqueue, enqueue_many, handler
from supervisor.queues import pause_queue, resume_queue
from supervisor.testing import assert_enqueued, drain, run_job
from tests.support.database import Database
from tests.support.libraries import Async


@pytest.fixture
def conn(shop: Database) -> psycopg.Connection[Any]:
    return shop.connect(autocommit=False)


def nothing_is_left(shop: Database) -> bool:
    tables = ("job", "history", "dead_letter", "session")
    return all(shop.value(f"select count(*)::int from supervisor.{table}") == 0 for table in tables)


def declare() -> None:
    @handler("d.ends", max_attempts=2, backoff=Backoff(10, 60))
    def ends(how: str) -> None:
        how_else = {"retry": Retry(after=5), "snooze": Snooze(after=60), "cancel": Cancel("no"), "fail": ValueError()}
        if how in how_else:
            raise how_else[how]


def test_each_run_becomes_what_run_foretells(conn: psycopg.Connection[Any], shop: Database) -> None:
    declare()
    jobs = [NewJob("d.ends", {"how": how}, max_attempts=2) for how in ("ok", "retry", "snooze", "cancel", "fail")]
    jobs += [NewJob("d.ends", {"how": 1}), NewJob("d.nobody"), NewJob("d.ends", {"how": "fail"}, max_attempts=1)]
    added = enqueue_many(conn, jobs)
    drained = drain(conn)
    assert [ran.id for ran in drained] == [one.id for one in added]
    for ran, job in zip(drained, jobs, strict=True):
        told = run_job(job)
        assert (ran.event, ran.status, ran.reason, ran.attempt) == (told.event, told.status, told.reason, told.attempt)
        assert (ran.error or "").split("\n")[0] == (told.error or "").split("\n")[0]
        if told.due_between_s is None:
            assert ran.due_in_s is None
        else:
            low, high = told.due_between_s
            assert ran.due_in_s is not None
            assert low - 1 < ran.due_in_s <= high
    stored = dict(conn.execute("select id, status::text from supervisor.jobs").fetchall())
    assert stored == {ran.id: ran.status for ran in drained}
    assert drain(conn) == []
    conn.rollback()
    assert nothing_is_left(shop)


def test_the_last_attempt_as_run_foretells(conn: psycopg.Connection[Any]) -> None:
    declare()
    job = NewJob("d.ends", {"how": "fail"}, max_attempts=2)
    enqueue_many(conn, [job])
    [first] = drain(conn)
    [second] = drain(conn, ahead=60)
    assert (first.status, second.attempt, second.status, second.reason) == ("queued", 2, "dead", "attempts")
    assert run_job(job, attempt=2).status == second.status


def test_what_is_later_stays_unless_asked_for_and_queues_are_kept_apart(conn: psycopg.Connection[Any]) -> None:
    seen: list[int] = []

    @handler("d.seen")
    def see(n: int) -> None:
        seen.append(n)

    see.enqueue(conn, 1)
    see.at(in_=timedelta(hours=1)).enqueue(conn, 2)
    see.at(in_=timedelta(hours=3)).enqueue(conn, 3)
    see.at(queue="other").enqueue(conn, 4)
    see.at(priority=-1).enqueue(conn, 5)
    assert len(drain(conn, queue="default")) == 2
    assert seen == [5, 1]
    drain(conn, ahead=timedelta(hours=2))
    assert seen == [5, 1, 2, 4] or seen == [5, 1, 4, 2]
    assert drain(conn) == []


def test_a_paused_queue_is_left_alone(conn: psycopg.Connection[Any]) -> None:
    declare()
    enqueue_many(conn, [NewJob("d.ends", {"how": "ok"}, queue=queue) for queue in ("held", "one", "zone", "free")])
    pause_queue(conn, "held")
    assert [ran.status for ran in drain(conn)] == ["done", "done", "done"]
    assert_enqueued(conn, "d.ends", queue="held", count=1)
    resume_queue(conn, "held")
    assert [ran.status for ran in drain(conn)] == ["done"]


def test_a_job_that_was_cancelled_while_it_ran(conn: psycopg.Connection[Any]) -> None:
    @handler("d.cancels")
    def cancels(job: Job) -> None:
        conn.execute("select supervisor.cancel_job(array[%s::bigint])", [job.id])
        raise ValueError

    cancels.enqueue(conn)
    [ran] = drain(conn)
    assert (ran.event, ran.status, ran.reason) == ("failed", "cancelled", "operator")


def test_jobs_that_jobs_enqueue_are_run_and_bounded(conn: psycopg.Connection[Any]) -> None:
    @handler("d.chain")
    def chain(n: int) -> None:
        if n:
            chain.enqueue(conn, n - 1)

    chain.enqueue(conn, 3)
    assert [ran.status for ran in drain(conn)] == ["done"] * 4
    chain.enqueue(conn, 1000)
    with pytest.raises(AssertionError, match="drain made 5 runs and more jobs are due in queue 'default'"):
        drain(conn, limit=5)


def test_a_jobs_own_transaction_is_the_callers(conn: psycopg.Connection[Any], shop: Database) -> None:
    @handler("d.writes")
    def writes(job: Job, n: int, fail: bool = False) -> None:
        with job.transaction() as mine:
            mine.execute("insert into business values (%s)", [n])
            if fail:
                raise ValueError

    @handler("d.after")
    def after(job: Job) -> None:
        with job.transaction():
            pass
        raise ValueError("after its end was written")

    writes.enqueue(conn, 1)
    writes.enqueue(conn, 2, fail=True)
    after.enqueue(conn)
    assert [ran.status for ran in drain(conn)] == ["done", "queued", "done"]
    assert conn.execute("select id from business").fetchall() == [(1,)]
    conn.rollback()
    assert shop.rows("select id from business") == []


def test_a_handler_that_breaks_the_transaction_harms_nobody_else(conn: psycopg.Connection[Any]) -> None:
    @handler("d.breaks")
    def breaks(quietly: bool) -> None:
        conn.execute("insert into business values (1)")
        try:
            conn.execute("insert into business values (1)")
        except psycopg.Error:
            if not quietly:
                raise

    @handler("d.good", priority=1)
    def good() -> None:
        conn.execute("insert into business values (7)")

    breaks.enqueue(conn, quietly=True)
    breaks.enqueue(conn, quietly=False)
    good.enqueue(conn)
    quiet, loud, fine = drain(conn)
    assert (quiet.status, loud.status, fine.status) == ("queued", "queued", "done")
    assert "left the transaction aborted" in str(quiet.error)
    assert "UniqueViolation" in str(loud.error)
    assert conn.execute("select id from business").fetchall() == [(7,)]


def test_a_commit_leaves_a_queue_that_a_service_can_go_on_with(conn: psycopg.Connection[Any], shop: Database) -> None:
    declare()
    enqueue(conn, "d.ends", {"how": "ok"})
    enqueue(conn, "d.ends", {"how": "retry"})
    drain(conn)
    conn.commit()
    assert shop.statuses() == {"done": 1, "queued": 1}
    assert shop.value("select count(*)::int from supervisor.session where closed_at is null") == 0
    assert shop.value("select count(*)::int from supervisor.job where lease is not null") == 0


def test_an_autocommit_connection(shop: Database) -> None:
    declare()
    conn = shop.connect()
    enqueue(conn, "d.ends", {"how": "ok"})
    assert [ran.status for ran in drain(conn)] == ["done"]
    assert shop.statuses() == {"done": 1}


async def test_async_connections(shop: Database) -> None:
    @handler("d.async")
    async def writes(job: Job, n: int) -> None:
        async with job.transaction() as mine:
            await mine.execute("insert into business values (%s)", [n])

    @handler("d.plain")
    def plain() -> None: ...

    async with await shop.aconnect(autocommit=False) as conn:
        await writes.enqueue(conn, 1)
        await plain.enqueue(conn)
        assert [ran.status for ran in await drain(conn)] == ["done", "done"]
        cursor = await conn.execute("select id from business")
        assert await cursor.fetchall() == [(1,)]
        await conn.rollback()
    assert nothing_is_left(shop)


def test_an_async_handler_on_a_sync_connection(conn: psycopg.Connection[Any]) -> None:
    @handler("d.async")
    async def needs_async(job: Job) -> None:
        async with job.transaction():
            pass

    @handler("d.fine")
    async def fine() -> None: ...

    needs_async.enqueue(conn)
    fine.enqueue(conn)
    wrong, right = drain(conn)
    assert "needs a drain on an async connection" in str(wrong.error)
    assert right.status == "done"


# -- other libraries -------------------------------------------------------------------------------


def test_django(django_conn: Any, shop: Database) -> None:
    @handler("d.django")
    def buy(n: int) -> None:
        with django_conn.cursor() as cursor:
            cursor.execute("insert into business values (%s)", [n])

    with transaction.atomic():
        for n in (1, 1, 2):
            buy.enqueue(django_conn, n)
        ran = drain(django_conn)
        assert [one.status for one in ran] == ["done", "queued", "done"]
        assert isinstance(ran[1].exception, IntegrityError)
        transaction.set_rollback(True)
    assert nothing_is_left(shop)
    assert shop.rows("select id from business") == []


def test_sqlalchemy(engine: Engine, shop: Database) -> None:
    with Session(engine) as session:

        @handler("d.session")
        def buy(n: int) -> None:
            session.execute(text("insert into business values (:n)"), {"n": n})

        buy.enqueue(session, 1)
        assert [one.status for one in drain(session)] == ["done"]
        assert session.execute(text("select id from business")).all() == [(1,)]
        session.rollback()
    with engine.begin() as conn:
        declare()
        enqueue(conn, "d.ends", {"how": "retry"})
        [ran] = drain(conn)
        assert ran.due_in_s == pytest.approx(5, abs=1)
        conn.rollback()
    assert nothing_is_left(shop)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_sqlalchemy_async(driver: str, open_async: Async, shop: Database) -> None:
    async with open_async.engine(driver) as engine, AsyncSession(engine) as session:

        @handler("d.asession")
        async def buy(n: int) -> None:
            await session.execute(text("insert into business values (:n)"), {"n": n})

        for n in (1, 1, 2):
            await buy.enqueue(session, n)
        assert [one.status for one in await drain(session)] == ["done", "queued", "done"]
        assert (await session.execute(text("select id from business order by 1"))).all() == [(1,), (2,)]
        await session.rollback()
    assert nothing_is_left(shop)


def test_a_jobs_own_transaction_below_other_libraries(django_conn: Any, engine: Engine, shop: Database) -> None:
    @handler("d.below")
    def below(job: Job, n: int) -> None:
        with job.transaction() as mine:
            mine.execute("insert into business values (%s)", [n])

    with transaction.atomic():
        for n in (1, 1, 2):
            below.enqueue(django_conn, n)
        assert [one.status for one in drain(django_conn)] == ["done", "queued", "done"]
        transaction.set_rollback(True)
    with Session(engine) as session:
        for n in (1, 1, 2):
            below.enqueue(session, n)
        assert [one.status for one in drain(session)] == ["done", "queued", "done"]
        session.rollback()
    assert nothing_is_left(shop)
    assert shop.rows("select id from business") == []


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_an_async_jobs_own_transaction_below_sqlalchemy(driver: str, open_async: Async, shop: Database) -> None:
    @handler("d.below")
    async def below(job: Job, n: int) -> None:
        async with job.transaction() as mine:
            await mine.execute("insert into business values (%s)", [n])

    async with open_async.engine(driver) as engine, engine.connect() as conn:
        await below.enqueue(conn, 1)
        [ran] = await drain(conn)
        if driver == "psycopg":
            assert ran.status == "done"
        else:
            assert "there is none below this connection, but asyncpg" in str(ran.error)
        await conn.rollback()
    assert nothing_is_left(shop)


async def test_asyncpg(open_async: Async, shop: Database) -> None:
    declare()
    async with open_async.asyncpg() as conn:
        block = conn.transaction()
        await block.start()
        for how in ("ok", "fail", 'with "quotes" and \\'):
            await enqueue(conn, "d.ends", {"how": how})
        assert [one.status for one in await drain(conn)] == ["done", "queued", "done"]
        await block.rollback()
    assert nothing_is_left(shop)


def test_jobs_at_gates_run_when_they_may_and_no_rate_is_waited_for(
    conn: psycopg.Connection[Any], shop: Database
) -> None:
    """In their order, one after the other, after their parents; a retry holds its key, and what comes later waits."""
    ran: list[int] = []

    @handler("d.gated")
    def gated(job: Job, fail: bool = False) -> None:
        ran.append(job.id)
        if fail and job.attempt == 1:
            raise Retry(after=60)

    parent = enqueue(conn, "d.gated", priority=50)
    child = enqueue(conn, "d.gated", after=[parent], priority=-50)
    paced = [enqueue(conn, "d.gated", rate_key="r", rate_limit=1, rate_period=timedelta(hours=1)) for _ in range(3)]
    later = enqueue(conn, "d.gated", in_=60, concurrency_key="c", concurrency_limit=1)
    first = enqueue(conn, "d.gated", {"fail": True}, ordering_key="a")
    second = enqueue(conn, "d.gated", ordering_key="a")
    drain(conn)
    assert sorted(ran) == sorted(job.id for job in (parent, child, *paced, first))
    assert ran.index(parent.id) < ran.index(child.id)
    assert [job for job in ran if job in {one.id for one in paced}] == [job.id for job in paced]
    drain(conn, ahead=3600)
    assert ran[6:].index(first.id) < ran[6:].index(second.id)
    assert sorted(ran[6:]) == sorted(job.id for job in (later, first, second))
    conn.rollback()
    assert nothing_is_left(shop)
