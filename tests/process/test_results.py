"""Results of jobs: kept once, with the end of the run that made them, and told to whoever waits."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from supervisor import Results, enqueue, result_of
from supervisor.errors import CannotWait, JobCancelled, JobFailed, JobUnknown, ResultGone
from tests.support.database import Database
from tests.support.jobs import enqueue as add
from tests.support.jobs import enqueue_all, job
from tests.support.service import Service
from tests.support.sizes import FULL, within

Start = Callable[..., Service]
HANDLERS = "tests.support.result_handlers"

WAITERS = 200
AT_ONCE_S = within(2.0, busy_s=4.5)  # the look that covers lost notifications comes after five
QUIET = """
select bool_and(state = 'idle' and clock_timestamp() - query_start > interval '1.5 s')
  from pg_stat_activity where datname = current_database() and application_name = 'pg-supervisor results'
"""


def calls(db: Database, function: str = "await_results") -> int:
    """How often the server has run this function; needs `count_calls`, and sessions that have told (autocommit)."""
    db.execute("select pg_stat_force_next_flush()")
    found = db.value("select calls from pg_stat_user_functions where funcname = %s", [function])
    return int(found or 0)


def count_calls(db: Database) -> None:
    db.server.execute(f"alter database {db.name} set track_functions = 'all'")


# -- what is answered ------------------------------------------------------------------------------


@pytest.mark.pg("15", "18")
async def test_every_end_has_its_answer(db: Database, service: Start) -> None:
    service(processes=1, handlers=HANDLERS)
    async with await db.aconnect() as conn:

        async def answer(kind: str, **payload: Any) -> Any:
            found = await enqueue(conn, kind, payload, max_attempts=1)
            return await found.result(conn, timeout=10)

        assert await answer("r.add", a=1, b=2) == {"total": 3, "parts": [1, 2]}
        assert await answer("r.add_sync", a=2, b=2) == 4
        assert await answer("r.none") is None
        assert await answer("r.plain") is None, "a handler without result_for keeps nothing"
        assert await answer("r.in_transaction") == {"from": "the transaction"}
        assert await answer("r.in_transaction", give=False) is None
        assert await answer("r.in_transaction_sync") == [1, 2]

        for kind, payload, reason, text in (
            ("r.large", {"size": 70_000}, "result", "70002 bytes encoded, the limit is 65536"),
            ("r.wrong", {}, "result", "a str does not fit its return type: expected `int`"),
            ("r.unstorable", {}, "result", "result.text holds a NUL character"),
            ("r.sets_without_keeping", {}, "result", "declare it with result_for"),
            ("r.cancel", {}, "cancel", "no use"),
            ("r.fail", {}, "attempts", "it went wrong"),
        ):
            with pytest.raises(JobFailed, match=text) as failed:
                await answer(kind, **payload)
            assert (failed.value.reason, failed.value.attempts) == (reason, 1)
            assert text in (failed.value.error or "")
        with pytest.raises(JobUnknown, match="job 999 is not known"):
            await result_of(conn, 999, timeout=10)
        [later] = add(db, "r.plain", run_at="2999-01-01T00:00:00Z")
        db.execute("select supervisor.cancel_job(array[%s::bigint])", [later])
        with pytest.raises(JobCancelled, match=f"job {later} was cancelled"):
            await result_of(conn, later, timeout=10)
        brief = await enqueue(conn, "r.brief")
        db.wait_for("select count(*)::int from supervisor.result where job_id = %s and expires_at < clock_timestamp()",
                    1, params=[brief.id])  # fmt: skip
        with pytest.raises(ResultGone, match="past its time"):
            await brief.result(conn, timeout=10)
    assert db.rows("select * from supervisor.awaited") == [], "nobody waits any more"


def test_each_kind_of_connection_does(db: Database, service: Start) -> None:
    """Sync and async connections and pools, an address, Results; not in a transaction, where it would wait for ever."""
    service(processes=1, handlers=HANDLERS)
    [done, slow] = [*add(db, "r.add_sync", {"a": 1, "b": 2}), *add(db, "r.sleep", {"seconds": 1.0})]

    conn = db.connect()
    assert result_of(conn, done, timeout=10) == 3
    with pytest.raises(TimeoutError, match=rf"job {slow} is still \w+ after 0.2 s"):
        result_of(conn, slow, timeout=0.2)
    assert conn.execute("select count(*) from pg_listening_channels()").fetchone() == (0,), "left as it was"
    assert result_of(conn, slow, timeout=10) == "slept"

    plain = db.connect(autocommit=False)
    assert result_of(plain, done, timeout=10) == 3
    assert not plain.autocommit
    inside = enqueue(plain, "r.add_sync", {"a": 5, "b": 5})
    with pytest.raises(CannotWait, match=r"in a transaction.*wait after the commit"):
        inside.result(plain, timeout=10)
    plain.commit()
    assert inside.result(plain, timeout=10) == 10
    with pytest.raises(CannotWait, match="answer of an enqueue, or an id"):
        result_of(plain, "7", timeout=1)  # type: ignore[call-overload]
    with pytest.raises(CannotWait, match="a dict cannot be listened on"):
        result_of({}, done, timeout=1)  # type: ignore[call-overload]

    with ConnectionPool(db.conninfo, min_size=1, max_size=1) as pool:
        assert result_of(pool, done, timeout=10) == 3
        with pool.connection() as given:
            assert not given.autocommit

    async def others() -> list[Any]:
        found = [await result_of(db.conninfo, done, timeout=10)]
        async with AsyncConnectionPool(db.conninfo, min_size=1, max_size=1, open=False) as apool:
            found.append(await result_of(apool, done, timeout=10))
        async with await psycopg.AsyncConnection.connect(db.conninfo) as aconn:
            found.append(await result_of(aconn, done, timeout=10))
            await aconn.execute("select 1")
            with pytest.raises(CannotWait, match="in a transaction"):
                await result_of(aconn, done, timeout=10)
        async with Results(db.conninfo) as results:
            found += [await results.of(done), await result_of(results, done, timeout=10)]
        with pytest.raises(CannotWait, match="not open"):
            await results.of(done)
        return found

    assert asyncio.run(others()) == [3] * 5
    with Results(db.conninfo) as threads:
        assert threads.wait(done, timeout=10) == 3


def test_a_result_that_was_kept_without_history_is_found(db: Database, service: Start) -> None:
    service(processes=1, handlers=HANDLERS, keep_history_days=0)
    conn = db.connect()
    assert enqueue(conn, "r.add_sync", {"a": 1, "b": 2}).result(conn, timeout=10) == 3
    # Of a job that keeps nothing, whoever saw it live knows that it is done when it is gone.
    slow = enqueue(conn, "t.sleep", {"seconds": 0.5})
    assert slow.result(conn, timeout=10) is None
    with pytest.raises(JobUnknown):
        slow.result(conn, timeout=10)


# -- by notification -------------------------------------------------------------------------------


async def test_two_hundred_waiters_are_woken_at_once_and_ask_nothing_meanwhile(db: Database, service: Start) -> None:
    """Each waits on the database's word: while nothing ends nobody asks, and the end of all is a few questions."""
    count_calls(db)
    service(processes=1, handlers=HANDLERS, concurrency=WAITERS)
    ids = add(db, "r.sleep", {"seconds": 4.0}, count=WAITERS)
    async with Results(db.conninfo) as results:
        waits = [asyncio.create_task(results.of(one, timeout=30)) for one in ids]
        await asyncio.to_thread(db.wait_for, "select count(*)::int from supervisor.awaited", WAITERS)
        await asyncio.to_thread(db.wait_for, "select count(*)::int from effects where note = 'start'", WAITERS)
        await asyncio.to_thread(db.wait_for, QUIET, True)
        assert db.effects("done") == {}, "somebody polls: it was quiet only when jobs began to end"
        assert await asyncio.gather(*waits) == ["slept"] * WAITERS
        last = db.value("select max(at) from effects where note = 'done'")
        late_s = db.value("select extract(epoch from clock_timestamp() - %s)::float8", [last])
    asked = calls(db)
    assert late_s < AT_ONCE_S
    assert 0 < asked < 60, f"{asked} questions for {WAITERS} waits"
    assert db.rows("select * from supervisor.awaited") == []


async def test_a_waiter_of_its_own_asks_twice(db: Database, service: Start) -> None:
    count_calls(db)
    service(processes=1, handlers=HANDLERS, concurrency=20)
    ids = add(db, "r.sleep", {"seconds": 1.0}, count=10)

    async def alone(one: int) -> Any:
        async with await db.aconnect() as conn:
            return await result_of(conn, one, timeout=30)

    assert await asyncio.gather(*map(alone, ids)) == ["slept"] * 10
    # At its beginning, and when it was told; once more where the end was just under way.
    assert 20 <= calls(db) <= 40


async def test_what_ends_at_once_is_not_missed(db: Database, service: Start) -> None:
    """Jobs end while their waiters register: no such race may cost the seconds of the look that covers lost ones."""
    service(processes=2, handlers=HANDLERS, concurrency=10)
    longest = 0.0
    rounds = 1500 if FULL else 150
    async with await db.aconnect() as conn, Results(db.conninfo) as results:
        for number in range(rounds):
            found = await enqueue(conn, "r.add_sync", {"a": number, "b": 0})
            await asyncio.sleep(random.choice((0.0, 0.001, 0.003)))
            began = time.monotonic()
            assert await (found.result(conn, timeout=20) if number % 2 else results.of(found, timeout=20)) == number
            longest = max(longest, time.monotonic() - began)
    assert longest < AT_ONCE_S, f"a waiter was told after {longest:.1f} s"


async def test_results_outlive_their_connection(db: Database, service: Start) -> None:
    service(processes=1, handlers=HANDLERS)
    [slow, slower] = [*add(db, "r.sleep", {"seconds": 2.0}), *add(db, "r.sleep", {"seconds": 2.5})]
    async with Results(db.conninfo) as results:
        waits = [asyncio.create_task(results.of(one, timeout=30)) for one in (slow, slower)]
        await asyncio.to_thread(db.wait_for, "select count(*)::int from supervisor.awaited", 2)
        assert db.terminate_sessions("pg-supervisor results") == 1
        began = time.monotonic()
        assert await asyncio.gather(*waits) == ["slept", "slept"]
        assert time.monotonic() - began < within(4.5, busy_s=4.9), "it was found by the slow look"


# -- once, and with the end of the run ----------------------------------------------------------------


def test_each_result_is_kept_once_while_workers_are_killed(db: Database, service: Start) -> None:
    """Workers die all the time; each job ends done with the result of the run that ended it, and of no other."""
    one = service(processes=2, handlers=HANDLERS, concurrency=5, lease_s=5, restart_budget=1000)
    ids = enqueue_all(db, [{"kind": "r.sleep", "payload": {"seconds": 0.02}, "max_crashes": 1000}] * 300)
    ended = 0
    while ended < len(ids):
        pids = one.worker_pids()
        if pids:
            os.kill(random.choice(pids), signal.SIGKILL)
        further = min(len(ids), ended + 10)
        db.wait_for("select count(*) >= %s from supervisor.history", True, 30, [further])
        ended = db.value("select count(*)::int from supervisor.history")
        assert one.alive
    assert db.value("select count(*)::int from supervisor.result") == len(ids)
    assert db.rows("select id from supervisor.history group by id having count(*) > 1") == []
    assert db.rows(
        "select h.id from supervisor.history h left join supervisor.result r on r.job_id = h.id"
        " where r.value is distinct from '\"slept\"' or h.result_until is null or r.stored_at <> h.finished_at"
    ) == []  # fmt: skip
    assert db.statuses() == {"done": len(ids)}


def test_a_worker_that_dies_between_the_return_and_the_store_costs_a_run_and_no_crash(
    db: Database, service: Start
) -> None:
    """What the handler returned has died with its worker: the job runs again, rather than end without its result."""
    one = service(processes=1, handlers=HANDLERS)
    [ours] = add(db, "r.sleep", {"seconds": 0.5})
    [plain] = add(db, "t.sleep", {"seconds": 0.5})
    db.wait_for("select count(*)::int from effects where note = 'start'", 2)
    # Whoever stores an end of these two waits for this lock.
    blocker = db.connect(autocommit=False)
    blocker.execute("select from supervisor.job where id = any (%s) for share", [[ours, plain]])
    db.wait_for("select count(*)::int from effects where note = 'done'", 2)
    db.wait_for("select count(*)::int from pg_stat_activity where application_name = 'pg-supervisor worker'"
                " and wait_event_type = 'Lock'", 1)  # fmt: skip
    [pid] = one.worker_pids()
    os.kill(pid, signal.SIGKILL)
    # Its statement would go on without it.
    for backend in db.rows(
        "select pid from pg_stat_activity where application_name = 'pg-supervisor worker' and wait_event_type = 'Lock'"
        " and datname = current_database()"
    ):
        db.execute("select pg_terminate_backend(%s, 5000)", list(backend))
    blocker.rollback()

    db.wait_for("select count(*)::int from supervisor.history", 2)
    assert db.effects("start") == {ours: 2, plain: 1}, "an end without a result is stored for the dead worker"
    assert db.value("select value::text from supervisor.result") == '"slept"'
    for one_id in (ours, plain):
        row = job(db, one_id)
        assert (row["status"], row["attempts"], row["crashes"], row["errors"]) == ("done", 1, 0, [])
    recovered = one.wait_event("worker.recovered")
    assert (recovered["released"], recovered["done"], recovered["charged_job"]) == (1, 1, None)


# -- progress ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["r.progress", "r.progress_sync"])
def test_progress_is_shown_while_it_runs_and_written_once_a_second(db: Database, service: Start, kind: str) -> None:
    count_calls(db)
    service(processes=1, handlers=HANDLERS, concurrency=20)
    ids = add(db, kind, {"steps": 400, "pause": 0.01}, count=10)
    seen: set[float] = set()
    notes: set[str] = set()
    while db.value("select count(*)::int from supervisor.history") < len(ids):
        for share, note in db.rows("select progress, progress_note from supervisor.jobs where progress is not null"):
            assert note == f"step {round(share * 400)} of 400"
            seen.add(share)
            notes.add(note)
        time.sleep(0.1)
    took_s = db.value("select extract(epoch from max(finished_at) - min(started_at))::float8 from supervisor.history")
    assert len(notes) >= 2
    assert max(seen) > 0.3
    assert calls(db, "say_progress") <= took_s + 2, "one statement for all of them, once a second"
    assert db.effects("done") == dict.fromkeys(ids, 1)
    changed, hot = db.rows("select n_tup_upd::int, n_tup_hot_upd::int from pg_stat_user_tables where relname = 'job'")[
        0
    ]
    assert hot >= changed * 0.9, f"{hot} of {changed} were HOT"


def test_progress_of_an_earlier_run_is_not_shown(db: Database, service: Start) -> None:
    one = service(processes=1, handlers=HANDLERS)
    [ours] = add(db, "r.progress", {"steps": 10_000, "pause": 0.01})
    db.wait_for("select progress is not null from supervisor.jobs", True)
    os.kill(one.worker_pids()[0], signal.SIGKILL)
    db.wait_for("select status from supervisor.jobs", "queued")
    assert job(db, ours)["progress"] is None


# -- snooze -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["r.snooze", "r.snooze_sync", "r.snooze_result", "r.snooze_in_transaction"])
def test_a_snooze_spends_no_attempt(db: Database, service: Start, kind: str) -> None:
    """Five times with two attempts to spend: each run is the first attempt, and nothing is counted."""
    service(processes=1, handlers=HANDLERS)
    [ours] = add(db, kind, {"times": 5}, max_attempts=2)
    db.wait_for("select status from supervisor.jobs", "done")
    assert db.effects() == {ours: 6}
    notes = [row[0] for row in db.rows("select note from effects order by at")]
    assert notes == [f"attempt 1 token {token}" for token in range(1, 7)]
    row = job(db, ours)
    assert (row["attempts"], row["crashes"], row["errors"], row["last_error"]) == (1, 0, [], None)
