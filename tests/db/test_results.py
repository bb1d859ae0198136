"""Results in the database: under the run's fence, for their time; who waits is told, and nobody else asks."""

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from supervisor import Results, cancel_jobs, result_of, retry_jobs
from supervisor.db.jobs import numbers, texts
from supervisor.db.statements import statement
from supervisor.errors import InvalidJob, JobCancelled, JobUnknown
from tests.support.database import Database
from tests.support.queue import Held, Holder, enqueue, expire, reap, stored, sweep
from tests.support.roles import Roles
from tests.support.waiting import wait_until, wait_until_async


def finish(holder: Holder, *jobs: Held, value: str = '{"a": 1}', for_s: float = 3600.0, keep: int = 1) -> list[int]:
    """Send finish_with_results() as a worker does; the ids that counted."""
    rows = holder.conn.execute(
        statement("finish_with_results", "supervisor"),
        {
            "session": holder.session,
            "ids": numbers([one.id for one in jobs]),
            "claims": numbers([one.token for one in jobs]),
            "took": numbers([0.5 for _ in jobs]),
            "keep": keep,
            "results": texts(value for _ in jobs),
            "for_s": numbers([for_s for _ in jobs]),
        },
    )
    return sorted(row[0] for row in rows.fetchall())


def say(holder: Holder, job: Held, share: float, note: str | None = None) -> int:
    row = holder.conn.execute(
        statement("say_progress", "supervisor"),
        {
            "session": holder.session, "ids": numbers([job.id]), "claims": numbers([job.token]),
            "shares": numbers([share]), "notes": texts([note]),
        },
    ).fetchone()  # fmt: skip
    return int(row[0]) if row else -1


# -- under the fence ---------------------------------------------------------------------------------


@pytest.mark.pg("15", "16", "18")
def test_a_result_is_kept_with_the_end_of_its_run(db: Database) -> None:
    one = Holder(db)
    enqueue(one.conn, 3)
    jobs = one.claim(3).jobs
    assert finish(one, *jobs) == [1, 2, 3]
    assert db.statuses() == {"done": 3}
    assert db.rows("select job_id, value::text from supervisor.result order by 1") == [
        (number, '{"a": 1}') for number in (1, 2, 3)
    ]
    row = stored(db, 1)
    assert row["attempts"] == 1
    assert db.value("select result_until - finished_at = interval '1 hour' from supervisor.jobs where id = 1")
    assert finish(one, *jobs) == [], "once"


def test_a_result_of_a_run_that_lost_its_lease_is_not_kept(db: Database) -> None:
    """Reaped, claimed by another, cancelled and buried: whatever became of it, the late result changes nothing."""
    lost, other = Holder(db), Holder(db)
    enqueue(lost.conn, 2)
    first, second = lost.claim(2).jobs
    expire(db, lost.session)
    reap(other.conn)
    with pytest.raises(psycopg.Error) as closed:
        finish(lost, first)
    assert closed.value.sqlstate == "QS001"
    sweep(other.conn, base_s=0.0)
    again = wait_until(lambda: other.claim(2).jobs, what="claimed again")
    assert first.id in [one.id for one in again]
    # A session that lives, and a token that has passed.
    third = Holder(db)
    assert finish(third, first, second) == []
    db.execute("update supervisor.job set lease = %s, claims = 1 where id = %s", [third.session, first.id])
    stale = first._replace(token=0)
    assert finish(third, stale) == []
    assert db.rows("select * from supervisor.result") == []
    assert say(lost, first, 0.5) == 0
    assert finish(third, first) == [first.id]
    assert db.value("select count(*)::int from supervisor.result") == 1


def test_in_a_transaction_that_is_undone_nothing_is_kept(db: Database) -> None:
    one = Holder(db)
    enqueue(one.conn)
    [job] = one.claim().jobs
    with pytest.raises(ZeroDivisionError), one.conn.transaction():
        assert finish(one, job) == [job.id]
        _ = 1 / 0
    assert db.statuses() == {"running": 1}
    assert db.rows("select * from supervisor.result") == []


def test_results_and_waiters_past_their_time_go(db: Database) -> None:
    one = Holder(db)
    enqueue(one.conn, 3)
    brief, long, other = one.claim(3).jobs
    finish(one, brief, for_s=0.0)
    finish(one, long)
    db.rows("select * from supervisor.await_results('w', %s, 60)", [[other.id]])
    db.rows("select * from supervisor.await_results('gone', %s, 0)", [[other.id]])
    db.rows("select supervisor.prune('7 days', '30 days', 1000)")
    assert db.rows("select job_id from supervisor.result") == [(long.id,)]
    assert db.rows("select waiter from supervisor.awaited") == [("w",)]


def test_progress_is_fenced_and_hot(db: Database) -> None:
    one, other = Holder(db), Holder(db)
    enqueue(one.conn)
    [job] = one.claim().jobs
    assert say(one, job, 0.25, "a quarter") == 1
    assert say(other, job, 0.5) == 0
    assert say(one, job._replace(token=job.token + 1), 0.5) == 0
    row = stored(db, job.id)
    assert (row["progress"], row["progress_note"]) == (0.25, "a quarter")
    # Somebody is ending it: a word about its progress waits for nobody.
    with db.connect(autocommit=False) as busy:
        busy.execute("select from supervisor.job for update")
        assert say(one, job, 0.75) == 0
    db.wait_for("select pg_stat_force_next_flush() is not null and n_tup_hot_upd = n_tup_upd and n_tup_upd > 1"
                " from pg_stat_user_tables where relname = 'job'", True)  # fmt: skip


# -- who is told -------------------------------------------------------------------------------------


def heard(conn: psycopg.Connection[Any], wait_s: float = 5.0) -> list[tuple[str, str]]:
    return [(notice.channel, notice.payload) for notice in conn.notifies(timeout=wait_s, stop_after=1)]


def acked(one: Holder, job: Held) -> None:
    one.ack(job)


def with_result(one: Holder, job: Held) -> None:
    finish(one, job)


def settled_done(one: Holder, job: Held) -> None:
    one.settle(job, "done")


def dead(one: Holder, job: Held) -> None:
    one.settle(job, "dead", error="x", reason="cancel")


def cancelled(one: Holder, job: Held) -> None:
    one.settle(job, "released")
    one.conn.execute("select supervisor.cancel_job(array[%s::bigint])", [job.id])


@pytest.mark.parametrize("end", [acked, with_result, settled_done, dead, cancelled])
def test_every_end_tells_those_who_wait_for_it_and_only_them(db: Database, end: Callable[[Holder, Held], None]) -> None:
    one = Holder(db)
    enqueue(one.conn, 2)
    job, other = one.claim(2).jobs
    waits, idle = db.connect(), db.connect()
    waits.execute('listen "w1"')
    idle.execute('listen "w2"')
    assert waits.execute("select status, busy from supervisor.await_results('w1', %s, 60)", [[job.id]]).fetchall() == [
        ("running", False)
    ]
    idle.execute("select from supervisor.await_results('w2', %s, 60)", [[other.id]])
    end(one, job)
    assert heard(waits) == [("w1", str(job.id))]
    assert heard(idle, 0.2) == []
    rows = waits.execute("select status from supervisor.await_results('w1', %s, 60)", [[job.id]]).fetchall()
    assert rows[0][0] in ("done", "dead", "cancelled")
    assert db.rows("select waiter from supervisor.awaited") == [("w2",)]


def test_nobody_is_told_where_nobody_waits(db: Database) -> None:
    """Ends of runs send nothing: writers of the notification queue meet at one lock of the whole server."""
    one = Holder(db)
    enqueue(one.conn, 20)
    db.rows("select * from supervisor.await_results('gone', '{1}', 0)")  # its time is over
    listening = db.connect()
    listening.execute('listen "gone"')
    for job in one.claim(10).jobs:
        one.ack(job)
    finish(one, *one.claim(10).jobs)
    assert heard(listening, 0.3) == []


def test_more_ids_than_a_notification_holds_come_in_parts(db: Database) -> None:
    one = Holder(db)
    db.execute("select setval('supervisor.job_id_seq', 9000000000000000000)")
    enqueue(one.conn, 700)
    jobs = one.claim(700).jobs
    waits = db.connect()
    waits.execute('listen "w"')
    waits.execute("select from supervisor.await_results('w', %s, 60)", [[job.id for job in jobs]])
    one.ack(*jobs)
    told: list[int] = []
    for notice in waits.notifies(timeout=5.0, stop_after=1):
        told += map(int, notice.payload.split(","))
    assert sorted(told) == [job.id for job in jobs]


def test_whoever_registers_while_the_end_is_under_way_is_told_to_ask_again(db: Database) -> None:
    """The end has been written and not committed: its author has looked for waiters and saw none."""
    one = Holder(db)
    enqueue(one.conn)
    [job] = one.claim().jobs
    with one.conn.transaction():
        one.ack(job)
        assert db.rows("select status, busy from supervisor.await_results('w', %s, 60)", [[job.id]]) == [
            ("running", True)
        ]
    assert db.rows("select status, busy from supervisor.await_results('w', %s, 60)", [[job.id]]) == [("done", False)]


def test_an_end_waits_for_one_who_registers_and_then_sees_it(db: Database) -> None:
    """The other way round: the registration is not committed when the job ends. The ack waits for it, and tells."""
    one = Holder(db)
    enqueue(one.conn)
    [job] = one.claim().jobs
    waits = db.connect()
    waits.execute('listen "w"')
    registering = db.connect(autocommit=False)
    registering.execute("select from supervisor.await_results('w', %s, 60)", [[job.id]])

    async def end() -> None:
        acking = asyncio.create_task(asyncio.to_thread(one.ack, job))
        pid = one.conn.info.backend_pid
        await wait_until_async(
            lambda: db.value("select wait_event_type = 'Lock' from pg_stat_activity where pid = %s", [pid]), 5.0
        )
        registering.commit()
        await acking

    asyncio.run(end())
    assert heard(waits) == [("w", str(job.id))]


async def test_results_of_many_jobs_are_asked_for_together(db: Database) -> None:
    """One connection, whatever the number of waiters; and a wait that is given up leaves nothing behind."""
    one = Holder(db)
    enqueue(one.conn, 50)
    jobs = one.claim(50).jobs
    async with Results(db.conninfo) as results:
        waits = [asyncio.create_task(results.of(job.id, timeout=20)) for job in jobs for _ in range(3)]
        given_up = asyncio.create_task(results.of(jobs[0].id, timeout=20))
        with pytest.raises(TimeoutError, match=f"job {jobs[1].id} had not ended after 0.1 s"):
            await results.of(jobs[1].id, timeout=0.1)
        with pytest.raises(JobUnknown):
            await results.of(999_999, timeout=20)
        db.wait_for("select count(*)::int from supervisor.awaited", 50)
        given_up.cancel()
        assert len(db.server_sessions("pg-supervisor results")) == 1
        finish(one, *jobs[:25])
        one.settle(jobs[25:], "released")
        db.rows("select supervisor.cancel_job(%s)", [[job.id for job in jobs[25:]]])
        answers = await asyncio.gather(*waits, return_exceptions=True)
    assert [answer for answer in answers[:75] if answer != {"a": 1}] == []
    assert {type(answer) for answer in answers[75:]} == {JobCancelled}
    assert db.rows("select * from supervisor.awaited") == []
    assert given_up.cancelled()


def test_a_producer_may_wait_and_see_no_table(db: Database, roles: Roles) -> None:
    one = Holder(db)
    enqueue(one.conn)
    finish(one, *one.claim().jobs)
    with psycopg.connect(roles.login("producer"), autocommit=True) as conn:
        assert result_of(conn, 1, timeout=5) == {"a": 1}
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("select * from supervisor.result")
    with psycopg.connect(roles.login("reader"), autocommit=True) as conn:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            result_of(conn, 1, timeout=5)
        assert conn.execute("select value from supervisor.result").fetchone() == ({"a": 1},)


# -- orders by filter ----------------------------------------------------------------------------------


def test_the_sql_function_goes_on_from_its_edge(db: Database) -> None:
    """For every language: a batch at a time, counted."""
    enqueue(db.connect(), 25, kind="a")
    enqueue(db.connect(), 5, kind="b")
    seen: list[tuple[int, int]] = []
    after: int | None = 0
    while after is not None:
        [(gone, asked, after)] = db.rows(
            "select * from supervisor.cancel_jobs(kind => 'a', most => 10, after => %s)", [after]
        )
        seen.append((gone, asked))
    assert seen == [(10, 0), (10, 0), (5, 0)]
    assert db.statuses() == {"cancelled": 25, "queued": 5}
    assert db.rows("select * from supervisor.retry_jobs(statuses => '{cancelled}', kind => 'a')") == [(25, 0, None)]
    for call in ("cancel_jobs()", "cancel_jobs(statuses => '{dead}')", "cancel_jobs(kind => 'a', most => 0)",
                 "cancel_jobs(kind => 'a', statuses => '{queued,running}', kill_after => '-1 s')",
                 "retry_jobs(statuses => '{queued}')"):  # fmt: skip
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            db.rows(f"select * from supervisor.{call}")


def test_no_statement_reads_more_than_its_window(db: Database) -> None:
    """A filter that fits few rows of many: each call looks at 20,000 rows and says where to go on."""
    db.execute("insert into supervisor.job (kind) select 'a' from generate_series(1, 45000)")
    enqueue(db.connect(), 1, kind="rare")
    edges: list[int | None] = []
    after: int | None = 0
    found = 0
    while after is not None:
        [(gone, _, after)] = db.rows("select * from supervisor.cancel_jobs(kind => 'rare', after => %s)", [after])
        edges.append(after)
        found += gone
    assert edges == [20_000, 40_000, None]
    assert found == 1
    assert cancel_jobs(db.connect(), kind="rare") == (0, 0)


async def test_orders_from_python_on_every_connection(db: Database) -> None:
    conn = db.connect()
    ids = enqueue(conn, 4, kind="a", queue="q")
    assert cancel_jobs(conn, ids[0]) == (1, 0)
    assert cancel_jobs(conn, [ids[1]]) == (1, 0)
    with db.connect(autocommit=False) as plain:
        assert cancel_jobs(plain, queue="q") == (2, 0)
        assert db.statuses() == {"cancelled": 2, "queued": 2}, "in the caller's transaction"
        plain.rollback()
    async with await db.aconnect() as aconn:
        assert await cancel_jobs(aconn, kind="a", dry_run=True) == (2, 0)
        assert await cancel_jobs(aconn, kind="a") == (2, 0)
        assert await retry_jobs(aconn, kind="a", status="cancelled") == (4, 0)
    for wrong in ({}, {"jobs": 1, "kind": "a"}, {"kind": "a" * 200}, {"jobs": "1"}, {"older_than": -1}):
        with pytest.raises(InvalidJob):
            cancel_jobs(conn, **wrong)


def test_retry_leaves_a_job_whose_key_is_taken(db: Database) -> None:
    conn = db.connect()
    [old] = enqueue(conn, kind="a", unique_key="u")
    cancel_jobs(conn, old)
    enqueue(conn, kind="a", unique_key="u")
    [other] = enqueue(conn, kind="a")
    cancel_jobs(conn, other)
    assert retry_jobs(conn, kind="a", status="cancelled", dry_run=True) == (2, 0)
    assert retry_jobs(conn, kind="a", status="cancelled") == (1, 1)
    assert stored(db, old)["status"] == "cancelled"
