"""The service's own transactions hold nothing longer than they may, whatever becomes of their process."""

import asyncio

import pytest

from supervisor.db import jobs, link
from supervisor.errors import DatabaseUnavailable
from tests.support.database import Database
from tests.support.waiting import wait_until_async


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
