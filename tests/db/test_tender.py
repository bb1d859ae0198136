"""The tender, tick by tick: what it brings back, when, and what it must never do to what is in order."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import supervisor.db.tend as tend
import supervisor.parent.tender as tender_module
from supervisor.db.jobs import Lane, Mark
from supervisor.db.link import Link
from supervisor.parent.tender import REST_S, Tender, TickReport
from supervisor.settings import Settings
from tests.support.database import Database
from tests.support.queue import Holder, close_session, enqueue, expire, stored

LANE = Lane("default", 0)


@asynccontextmanager
async def tending(db: Database, *, resting: bool = False, **flags: Any) -> AsyncIterator[Tender]:
    link = Link(db.conninfo, name="test tend", statement_timeout_s=15, connect_timeout_s=5)
    try:
        yield Tender(link, Settings.load(database_url=db.conninfo, **flags), 1, resting=lambda: resting)
    finally:
        await link.close()


def marks(db: Database) -> dict[Lane, tuple[Any, int]]:
    return {Lane(row[0], row[1]): (row[2], row[3]) for row in db.rows("select * from supervisor.lane")}


def set_mark(db: Database, age: str) -> None:
    """Publish a mark for the default lane, so long ago."""
    db.execute(
        "insert into supervisor.lane (queue, priority, mark_at) values ('default', 0, clock_timestamp() - %s::interval)"
        " on conflict (queue, priority) do update set mark_at = excluded.mark_at",
        [age],
    )


def insert_at(db: Database, age: str, count: int = 1, queue: str = "default") -> list[int]:
    """Rows that appear at a place of so long ago, told to nobody."""
    rows = db.rows(
        "with new as (insert into supervisor.job (kind, queue, run_at)"
        " select 'k', %s, clock_timestamp() - %s::interval from generate_series(1, %s) returning id)"
        " select id from new order by id",
        [queue, age, count],
    )
    return [row[0] for row in rows]


async def until(tender: Tender, fact: Callable[[TickReport], bool], deadline_s: float = 10.0) -> TickReport:
    """Tick until *fact* holds of a report."""
    began = time.monotonic()
    while not fact(report := await tender.tick()):
        if time.monotonic() - began > deadline_s:
            pytest.fail(f"not within {deadline_s:g} s of ticks; last: {report}")
        await asyncio.sleep(0.02)
    return report


# -- what it brings back ------------------------------------------------------------------------


@pytest.mark.pg("15", "16", "18")
async def test_a_job_below_the_published_mark_comes_back_to_the_front(db: Database) -> None:
    """Within the period of a full sweep, however old its place is: right behind the lowest job in sight."""
    set_mark(db, "10 min")
    in_sight = insert_at(db, "5 min")
    async with tending(db) as tender:
        assert (await tender.tick()).moved == 0
        [hidden] = insert_at(db, "1 day")
        await until(tender, lambda report: report.moved == 1, 5)
    assert Holder(db).claim(5, marks={LANE: Mark(_text(db), 0)}).ids == [*in_sight, hidden]
    assert db.value("select run_at <= clock_timestamp() from supervisor.job where id = %s", [hidden])


def _text(db: Database) -> str:
    return str(
        db.value("""select to_char(mark_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US"+00"') from supervisor.lane""")
    )


async def test_a_job_that_the_mark_passed_in_the_last_seconds_comes_back_with_the_next_tick(db: Database) -> None:
    """The sweep of recent windows does not wait for the full one."""
    set_mark(db, "10 min")
    insert_at(db, "8 s")
    async with tending(db) as tender:
        assert (await tender.tick()).moved == 0
        tender._next_full = float("inf")
        set_mark(db, "3 s")  # as if another supervisor had published it
        assert (await tender.tick()).moved == 1
        assert (await tender.tick()).moved == 0


async def test_a_lane_that_nobody_announced_is_found(db: Database) -> None:
    for queue in ("z", "a", "mé"):
        insert_at(db, "1 s", queue=queue)
    async with tending(db) as tender:
        report = await tender.tick()
    assert set(report.lanes) == {Lane("z", 0), Lane("a", 0), Lane("mé", 0)}


async def test_jobs_of_a_reaped_session_are_charged_in_the_same_tick_wherever_they_lie(db: Database) -> None:
    old = insert_at(db, "2 days")
    new = enqueue(db.connect())
    holder = Holder(db)
    assert holder.claim(2).ids == old + new
    async with tending(db) as tender:
        assert (await tender.tick()).crashed == 0
        expire(db, holder.session)
        report = await tender.tick()
    assert (report.reaped, report.crashed) == (["w"], 2)
    assert [stored(db, job)["crashes"] for job in old + new] == [1, 1]


async def test_jobs_of_an_ended_session_go_back_uncharged(db: Database) -> None:
    insert_at(db, "2 days")
    enqueue(db.connect())
    holder = Holder(db)
    assert len(holder.claim(2).jobs) == 2
    close_session(holder.conn, holder.session)
    async with tending(db) as tender:
        assert (await tender.tick()).released == 2
    assert len(Holder(db).claim(5).jobs) == 2


async def test_a_repair_of_any_size_goes_on_in_steps(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction for all of it ran into its time limit once, was undone, and began anew for ever."""
    monkeypatch.setattr(tender_module, "_SWEEP_S", 0.0)
    hidden = [job for queue in ("a", "b") for job in insert_at(db, "1 day", 1500, queue)]
    enqueue(db.connect(), queue="a")
    for queue in ("a", "b"):
        db.execute(
            "insert into supervisor.lane (queue, priority, mark_at) values (%s, 0, now() - interval '1 min')", [queue]
        )
    moved = 0
    async with tending(db) as tender:
        for _ in range(20):
            report = await tender.tick()
            assert report.moved <= 1000
            moved += report.moved
            if report.moved == 0:
                break
    assert moved == len(hidden)
    old = "select count(*)::int from supervisor.job where run_at < now() - interval '2 min'"
    assert db.value(old) == 0


# -- what it must not do ------------------------------------------------------------------------


async def test_a_clock_that_was_set_back_sends_no_job_into_the_future(db: Database) -> None:
    """B33: a mark published before lies an hour ahead. Jobs were moved up to it once, to wait for an hour."""
    set_mark(db, "-1 hour")
    due = insert_at(db, "30 s", 3)
    [later] = enqueue(db.connect(), delay="30 min")
    scheduled = stored(db, later)["run_at"]
    async with tending(db) as tender:
        for _ in range(3):
            report = await tender.tick()
            assert report.lanes[LANE] < Mark("2100")
    assert stored(db, later)["run_at"] == scheduled
    # The mark follows the clock, and workers who start from it see what is due.
    assert db.value("select mark_at <= clock_timestamp() from supervisor.lane")
    assert Holder(db).claim(5, marks={LANE: Mark(_text(db), 0)}, lookback_s=0.25).ids == due


async def test_a_published_mark_never_passes_a_queued_job(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tender_module, "_PUBLISH_MS", -1.0)
    first, _ = insert_at(db, "1 min", 2)
    async with tending(db) as tender:
        await tender.tick()
        assert marks(db)[LANE][1] == first
        holder = Holder(db)
        [held] = holder.claim(1).jobs
        await tender.tick()
        assert marks(db)[LANE][1] > first
        holder.settle(held, "released")
        await until(tender, lambda report: report.moved == 1)
    assert sorted(Holder(db).claim(5, marks={LANE: Mark(_text(db), 0)}).ids) == sorted([first, first + 1])


async def test_only_one_of_many_tends_and_the_others_learn_the_lanes(db: Database) -> None:
    insert_at(db, "1 s")
    async with tending(db) as one, tending(db) as other, await db.aconnect(autocommit=False) as holder:
        assert (await one.tick()).tended
        assert await tend.try_tend(holder, db.schema)
        report = await other.tick()
        assert not report.tended
        assert list(report.lanes) == [LANE]
        await holder.rollback()
        assert (await other.tick()).tended


async def test_a_supervisor_that_is_stopped_in_mid_tick_loses_the_lock(db: Database) -> None:
    """Else nobody would sweep or reap for as long as it is frozen, since its connection lives on."""
    frozen = await db.aconnect(autocommit=False)
    assert await tend.try_tend(frozen, db.schema, idle_s=0.3)
    async with tending(db) as tender:
        assert not (await tender.tick()).tended
        await until(tender, lambda report: report.tended)
    await frozen.close()


async def test_a_reader_of_the_history_delays_the_drop_and_nothing_else(db: Database) -> None:
    """B37: the tick goes through; the old partition goes when the reader has."""
    db.execute("create table supervisor.history_20200101 partition of supervisor.history"
               " for values from ('2020-01-01+00') to ('2020-01-02+00')")  # fmt: skip
    exists = "select count(*)::int from pg_class where relname = 'history_20200101'"
    reader = db.connect(autocommit=False)
    reader.execute("select count(*) from supervisor.history")
    async with tending(db) as tender:
        report = await tender.tick()
        assert report.tended
        assert db.value(exists) == 1
        reader.rollback()
        tender._next_partitions = 0.0
        await tender.tick()
    assert db.value(exists) == 0


async def test_lanes_long_out_of_use_are_forgotten_and_found_again(db: Database) -> None:
    """B37: every helper table has an age limit."""
    for queue in ("used", "left"):
        insert_at(db, "1 s", queue=queue)
    async with tending(db) as tender:
        await tender.tick()
        db.execute("delete from supervisor.job where queue = 'left'")
        assert set((await tender.tick()).lanes) == {Lane("used", 0), Lane("left", 0)}
        db.execute("update supervisor.lane set seen_at = now() - interval '2 days'")
        report = await until(tender, lambda report: Lane("left", 0) not in report.lanes)
        assert set(report.lanes) == {Lane("used", 0)}
        insert_at(db, "1 s", queue="left")
        await until(tender, lambda report: Lane("left", 0) in report.lanes)


async def test_two_tenders_and_claimers_together_lose_and_double_nothing(db: Database) -> None:
    """Claims, roll-backs of claims and late commits while two supervisors tick without pause."""
    stop = asyncio.Event()

    async def tick_on(tender: Tender) -> None:
        while not stop.is_set():
            await tender.tick()

    def produce() -> None:
        conn = db.connect(autocommit=False)
        for number in range(60):
            enqueue(conn, 5, queue="q", priority=number % 2)
            (conn.rollback if number % 5 == 0 else conn.commit)()

    def consume(roll_back: bool) -> list[int]:
        holder = Holder(db)
        done: list[int] = []
        holder.conn.autocommit = False
        lanes = [Lane("q", 0), Lane("q", 1)]
        misses = 0
        while misses < 40:
            claim = holder.claim(4, lanes=lanes)
            if roll_back and len(done) % 3 == 0 and claim.jobs:
                holder.conn.rollback()
                misses += 1
                done.append(-1)
                continue
            holder.conn.commit()
            holder.ack(*claim.jobs)
            holder.conn.commit()
            done += claim.ids
            misses += not claim.jobs
        return [job for job in done if job > 0]

    async with tending(db) as one, tending(db) as other:
        ticking = [asyncio.create_task(tick_on(tender)) for tender in (one, other)]
        producing = asyncio.create_task(asyncio.to_thread(produce))
        results = await asyncio.gather(*(asyncio.to_thread(consume, flag) for flag in (True, False, False)))
        await producing
        rest = await asyncio.to_thread(consume, False)
        stop.set()
        await asyncio.gather(*ticking)
    done = [job for found in results for job in found] + rest
    assert len(done) == len(set(done)) == 48 * 5
    assert db.value("select count(*)::int from supervisor.job") == 0
    assert db.value("select coalesce(sum(crashes), 0)::int from supervisor.history") == 0


async def test_at_rest_the_next_tick_is_when_a_lease_of_another_supervisor_lapses(db: Database) -> None:
    async with tending(db) as awake:
        assert (await awake.tick()).next_in_s == 0.0
    async with tending(db, resting=True) as tender:
        assert (await tender.tick()).next_in_s == REST_S
        db.execute("select supervisor.open_session(1, 1, 'own', 3), supervisor.open_session(2, 2, 'other', 20)")
        assert 15 < (await tender.tick()).next_in_s < 20.1
        db.execute("select supervisor.close_session(2), supervisor.open_session(3, 2, 'far', 3600)")
        assert (await tender.tick()).next_in_s == REST_S
