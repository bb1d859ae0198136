"""The service's own transactions hold nothing longer than they may, whatever becomes of their process."""

import asyncio

import pytest

from supervisor.db import jobs, link, links
from supervisor.errors import DatabaseUnavailable
from tests.support.database import Database
from tests.support.waiting import wait_until_async

NOBODY = "host=127.0.0.1 port=1"


async def test_a_recovery_that_is_cut_off_in_the_middle_does_not_keep_its_session_locked(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once did, for as long as the server believed in the connection: the reaper steps over locked sessions,
    so the jobs of that worker stayed running (found by the chaos run)."""
    monkeypatch.setattr(link, "IDLE_MS", 300)
    one = link.Link(db.conninfo, name="cut off", statement_timeout_s=60, connect_timeout_s=5)
    await one.call(lambda conn: jobs.open_session(conn, "supervisor", session=7, parent=1, name="w", lease_s=0.01))
    silent = asyncio.Event()

    async def stops(conn: jobs.Connection) -> None:
        await conn.execute("select from supervisor.session where id = 7 for update")
        silent.set()
        await asyncio.Event().wait()

    stopped = asyncio.ensure_future(one.call(lambda conn: link.in_transaction(conn, stops)))
    await silent.wait()
    await wait_until_async(lambda: db.value("select count(*)::int from supervisor.reap()") == 1, 10, "it is reaped")
    stopped.cancel()
    with pytest.raises((asyncio.CancelledError, DatabaseUnavailable)):
        await stopped
    await one.close()


def connections(db: Database, name: str) -> int:
    found = db.value(
        "select count(*)::int from pg_stat_activity where datname = current_database() and application_name = %s",
        [name],
    )
    assert isinstance(found, int)
    return found


def shared(db: Database, name: str, *, most: int = 3, kept_s: float = 0.0) -> links.Links:
    return links.Links(
        lambda: link.Link(db.conninfo, name=name, statement_timeout_s=15, connect_timeout_s=5),
        most=most, kept_s=kept_s,
    )  # fmt: skip


async def sleep(conn: jobs.Connection, seconds: float = 0.2) -> None:
    await conn.execute("select pg_sleep(%s)", (seconds,))


async def test_callers_share_as_many_connections_as_are_in_use_and_one_when_it_is_quiet(db: Database) -> None:
    few = shared(db, "few")
    await asyncio.gather(*(few.call(sleep) for _ in range(8)))
    assert 1 <= connections(db, "few") <= 3
    for _ in range(3):
        await few.call(lambda conn: sleep(conn, 0))
    await wait_until_async(lambda: connections(db, "few") == 1, 10, "one is left")
    await few.close()
    await wait_until_async(lambda: connections(db, "few") == 0, 10, "none is left")


async def test_where_no_further_connection_is_to_be_had_callers_take_turns(db: Database) -> None:
    """The server at its limit: whoever has a connection goes on with it."""
    addresses = [db.conninfo, NOBODY, NOBODY]

    def make() -> link.Link:
        return link.Link(addresses.pop(0), name="turns", statement_timeout_s=15, connect_timeout_s=1)

    few = links.Links(make, most=3)
    await few.call(lambda conn: sleep(conn, 0))
    await asyncio.gather(*(few.call(sleep) for _ in range(4)))
    assert len(addresses) < 2  # another one was tried
    assert connections(db, "turns") == 1
    await few.close()


async def test_a_rider_never_waits_for_a_connection_that_others_use(db: Database) -> None:
    few = shared(db, "others", most=1)
    own = link.Link(db.conninfo, name="rider", statement_timeout_s=15, connect_timeout_s=5)
    rider = links.Rider(own, few, patience_s=5, kept_s=0.0)
    await few.call(lambda conn: sleep(conn, 0))
    await rider.call(lambda conn: sleep(conn, 0))
    assert connections(db, "rider") == 0
    held = asyncio.ensure_future(few.call(lambda conn: sleep(conn, 60)))
    await asyncio.sleep(0)
    await rider.call(lambda conn: sleep(conn, 0))
    assert connections(db, "rider") == 1
    held.cancel()
    await asyncio.wait({held})
    await few.call(lambda conn: sleep(conn, 0))
    await rider.call(lambda conn: sleep(conn, 0))
    await wait_until_async(lambda: connections(db, "rider") == 0, 10, "its own is closed")
    await few.close()


async def test_a_rider_gives_a_shared_connection_up_after_its_own_patience(db: Database) -> None:
    few = shared(db, "silent", most=1)
    own = link.Link(db.conninfo, name="patient", statement_timeout_s=15, connect_timeout_s=5)
    rider = links.Rider(own, few, patience_s=0.2)
    await few.call(lambda conn: sleep(conn, 0))
    with pytest.raises(DatabaseUnavailable, match=r"no answer within 0\.2 s"):
        await rider.call(lambda conn: sleep(conn, 30))
    await rider.call(lambda conn: sleep(conn, 0))
    await rider.close()
    await few.close()
