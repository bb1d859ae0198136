"""The tally: counts by minute that are added once, whatever the database does, and pruned after a week."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from supervisor.clock import DbClock
from supervisor.db import tend
from supervisor.db.link import Link
from supervisor.errors import DatabaseUnavailable
from supervisor.parent.tally import MOST_KEPT, Tally
from tests.support.database import Database
from tests.support.proxy import Proxy

Totals = dict[tuple[str, str], float]


@asynccontextmanager
async def tally(conninfo: str, totals: Totals, clock: DbClock | None = None) -> AsyncIterator[Tally]:
    """One over a connection of its own that gives up soon."""
    link = Link(conninfo, name="tally", statement_timeout_s=1, connect_timeout_s=1)
    try:
        yield Tally(link, "supervisor", totals=lambda: totals, clock=clock or DbClock())
    finally:
        await link.close()


def stored(db: Database) -> Totals:
    rows = db.rows("select queue, event, sum(n)::int from supervisor.tally group by 1, 2")
    return {(queue, event): n for queue, event, n in rows}


async def test_only_what_is_new_is_added_and_to_what_others_added(db: Database) -> None:
    mine: Totals = {("mail", "done"): 5, ("mail", "failed"): 1}
    theirs: Totals = {("mail", "done"): 100}
    async with tally(db.conninfo, mine) as one, tally(db.conninfo, theirs) as other:
        for counted in (one, other):
            counted.take()
            await counted.write()
        mine["mail", "done"] = 8
        one.take()
        await one.write()
        await one.write()
    assert stored(db) == {("mail", "done"): 108, ("mail", "failed"): 1}
    assert db.value("select bool_and(minute = date_trunc('minute', minute)) from supervisor.tally")
    assert db.value("select bool_and(minute between now() - interval '2 min' and now()) from supervisor.tally")


async def test_what_was_put_back_uncharged_is_one_word(db: Database) -> None:
    totals: Totals = {("q", "released"): 1, ("q", "interrupted"): 2, ("q", "suspect"): 3, ("q", "crashed"): 4}
    async with tally(db.conninfo, totals) as one:
        one.take()
        await one.write()
    assert stored(db) == {("q", "released"): 6, ("q", "crashed"): 4}


async def test_while_the_database_is_away_counts_are_kept_and_added_once_later(db: Database) -> None:
    totals: Totals = {("q", "done"): 1}
    with Proxy(db.conninfo) as proxy:
        async with tally(proxy.conninfo, totals) as one:
            proxy.refuse = lambda _: True
            for _ in range(3):
                one.take()
                with pytest.raises(DatabaseUnavailable):
                    await one.write()
                totals["q", "done"] += 10
            proxy.refuse = lambda _: False
            one.take()
            await one.write()
    assert stored(db) == {("q", "done"): 31}


@pytest.mark.pg("15", "16", "18")
async def test_when_the_answer_to_the_commit_is_lost_nothing_is_added_twice(db: Database) -> None:
    """The server is asked what became of that transaction: here it was committed."""
    totals: Totals = {("q", "done"): 7}
    with Proxy(db.conninfo) as proxy:
        async with tally(proxy.conninfo, totals) as one:
            one.take()
            proxy.lose(lambda sql: "commit" if sql.lower().startswith("commit") else None)
            with pytest.raises(DatabaseUnavailable) as lost:
                await one.write()
            assert lost.value.unsure
            assert proxy.lost["commit"] == 1
            assert stored(db) == {("q", "done"): 7}, "the server had committed it"
            proxy.lose(None)
            totals["q", "done"] = 9
            one.take()
            await one.write()
    assert stored(db) == {("q", "done"): 9}


@pytest.mark.pg("15", "16", "18")
async def test_when_the_statement_was_undone_it_is_added_again(db: Database) -> None:
    """The answer to the insert is lost and the connection with it: the server undoes it."""
    totals: Totals = {("q", "done"): 7}
    with Proxy(db.conninfo) as proxy:
        async with tally(proxy.conninfo, totals) as one:
            one.take()
            proxy.lose(lambda sql: "insert" if "insert into" in sql.lower() else None)
            with pytest.raises(DatabaseUnavailable):
                await one.write()
            proxy.lose(None)
            db.wait_for("select count(*) from pg_stat_activity where application_name = 'tally'", 0)
            assert stored(db) == {}
            await one.write()
    assert stored(db) == {("q", "done"): 7}


async def test_what_is_kept_is_bounded_and_its_sum_stays_right(db: Database) -> None:
    """A day without a database: times get coarser, counts do not get lost."""
    now = [1_900_000_000.0]
    clock = DbClock(now=lambda: now[0], wall=lambda: now[0])
    totals: Totals = {}
    async with tally(db.conninfo, totals, clock) as one:
        for minute in range(24 * 60):
            for queue in range(20):
                totals[f"q{queue}", "done"] = float(minute + 1)
            one.take()
            now[0] += 60
            assert len(one._kept) <= MOST_KEPT
        await one.write()
    assert stored(db) == {(f"q{queue}", "done"): 24 * 60 for queue in range(20)}


async def test_counts_of_more_than_a_week_ago_are_pruned_in_batches(db: Database) -> None:
    db.execute(
        "insert into supervisor.tally select now() - n * interval '1 day', 'q', 'done', 1 from generate_series(0, 20) n"
    )
    async with await db.aconnect() as conn:
        gone = [
            await tend.prune(conn, "supervisor", keep_history_s=86400, keep_dead_s=86400, limit=5) for _ in range(4)
        ]
    assert gone == [5, 5, 4, 0]
    assert db.value("select count(*) from supervisor.tally") == 7
