"""Jobs at gates, one move at a time: who is let in when, by what, and what becomes of those that wait.

`look` is what a supervisor's gatekeeper sends. What is let in at an ack is there without it.

Elsewhere: transactions that overlap (test_gate_races.py); running services (tests/process/test_gates.py).
"""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from supervisor.db import tend
from supervisor.db.jobs import Lane
from tests.db.test_plans import Explained, buffers, faults, nodes
from tests.support.database import Database
from tests.support.gates import MINUTE, at_gate, bring_notes, gated, let_in, look
from tests.support.queue import (
    Conn,
    Held,
    Holder,
    close_session,
    enqueue,
    expire,
    reap,
    settle,
    stored,
    sweep,
    work,
)

SECOND = timedelta(seconds=1)


@pytest.fixture
def worker(db: Database) -> Holder:
    return Holder(db)


def started(worker: Holder, *ids: int) -> list[Held]:
    """Claim all there is, which is exactly these."""
    jobs = worker.claim(100).jobs
    assert [job.id for job in jobs] == list(ids)
    return jobs


def notes(db: Database) -> list[tuple[Any, ...]]:
    return db.rows("select gate, key from supervisor.gate_note order by gate, key")


# -- order --------------------------------------------------------------------------------------


def test_jobs_of_a_key_go_one_by_one_in_the_order_of_their_ids(db: Database, worker: Holder) -> None:
    first, second, third = (gated(worker.conn, order="a") for _ in range(3))
    other = gated(worker.conn, order="b")
    assert started(worker) == []
    assert [at_gate(db, job) for job in (first, second, third, other)] == ["order"] * 4
    assert look(worker.conn).let_in == 2
    one, other_run = started(worker, first, other)
    claim = worker.claim(100, acks=[one])
    assert (claim.ids, claim.acked) == ([second], 1), "the next is claimed with the ack of the one before"
    claim = worker.claim(100, acks=[other_run, *claim.jobs])
    assert claim.ids == [third]
    worker.ack(*claim.jobs)
    look(worker.conn)
    assert db.value("select count(*)::int from supervisor.gated") == 0
    assert notes(db) == []


@pytest.mark.parametrize(
    ("event", "options"),
    [("failed", {"base_s": 60.0}), ("snoozed", {"delay_s": 60.0}), ("released", {}), ("crashed", {"base_s": 60.0})],
)
def test_a_key_is_kept_while_its_job_waits_to_run_again(
    db: Database, worker: Holder, event: str, options: dict[str, Any]
) -> None:
    first, second = gated(worker.conn, order="a"), gated(worker.conn, order="a")
    look(worker.conn)
    worker.settle(started(worker, first), event, error="E", **options)
    look(worker.conn)
    assert (let_in(db), at_gate(db, second)) == ([first], "order")
    db.execute("update supervisor.job set run_at = clock_timestamp() where gated and run_at < supervisor.parked_at()")
    assert worker.claim(9, acks=started(worker, first)).ids == [second]


def test_a_delayed_job_has_its_turn_and_keeps_the_key_until_its_time(db: Database, worker: Holder) -> None:
    first, second = gated(worker.conn, order="a", delay_s=3600), gated(worker.conn, order="a")
    look(worker.conn)
    assert (let_in(db), started(worker)) == ([first], [])
    assert (
        db.value("select extract(epoch from run_at - now())::float8 from supervisor.job where id = %s", [first]) > 3590
    )
    db.rows("select supervisor.reschedule_job(%s)", [[first]])
    assert worker.claim(9, acks=started(worker, first)).ids == [second]


@pytest.mark.parametrize("hold", [False, True])
def test_a_dead_job_lets_the_next_go_unless_it_holds_the_key(db: Database, worker: Holder, hold: bool) -> None:
    first, second = gated(worker.conn, order="a", hold=hold), gated(worker.conn, order="a")
    look(worker.conn)
    worker.settle(started(worker, first), "dead", error="E")
    look(worker.conn)
    assert at_gate(db, second) == ("order" if hold else None)
    if not hold:
        started(worker, second)
        return
    db.rows("select supervisor.retry_job(%s)", [[first]])
    look(worker.conn)
    [again] = started(worker, first)  # under its old id, so it is first
    worker.settle(again, "dead", error="E")
    look(worker.conn)
    assert started(worker) == []
    assert db.rows("select * from supervisor.release_order(%s)", [[first, second]]) == [(first,)]
    look(worker.conn)
    started(worker, second)


@pytest.mark.parametrize("running", [False, True])
def test_a_cancelled_job_frees_its_key_though_it_would_hold_it_when_dead(
    db: Database, worker: Holder, running: bool
) -> None:
    first, second = gated(worker.conn, order="a", hold=True), gated(worker.conn, order="a")
    look(worker.conn)
    jobs = started(worker, first) if running else []
    db.rows("select supervisor.cancel_job(%s)", [[first]])
    if running:
        look(worker.conn)
        assert at_gate(db, second) == "order"
        worker.settle(jobs, "interrupted")
    look(worker.conn)
    started(worker, second)
    db.rows("select supervisor.retry_job(%s)", [[first]])
    assert at_gate(db, first) == "order"


def test_a_waiting_job_that_is_cancelled_is_passed_over(db: Database, worker: Holder) -> None:
    first, second, third = (gated(worker.conn, order="a") for _ in range(3))
    look(worker.conn)
    db.rows("select supervisor.cancel_job(%s)", [[second]])
    assert stored(db, second)["status"] == "cancelled"
    assert stored(db, second)["run_at"] < "9999", "what people see is the time it was asked for"
    assert worker.claim(9, acks=started(worker, first)).ids == [third]


def test_a_job_of_a_lost_worker_keeps_its_key(db: Database, worker: Holder) -> None:
    first, second = gated(worker.conn, order="a"), gated(worker.conn, order="a")
    look(worker.conn)
    started(worker, first)
    expire(db, worker.session)
    assert reap(worker.conn) == {worker.session}
    assert sweep(worker.conn, base_s=0.0, cap_s=0.0) == {first: ("crashed", "queued")}
    look(worker.conn)
    assert at_gate(db, second) == "order"
    heir = Holder(db)
    assert heir.claim(9, acks=started(heir, first)).ids == [second]


def test_what_a_session_gives_back_unstarted_keeps_its_keys(db: Database, worker: Holder) -> None:
    first = gated(worker.conn, order="a", concurrency=("c", 1))
    second = gated(worker.conn, concurrency=("c", 1), order="b")
    for _ in range(3):
        look(worker.conn)
    started(worker, first)
    close_session(worker.conn, worker.session)
    assert sweep(worker.conn) == {first: ("released", "queued")}
    look(worker.conn)
    assert (let_in(db), at_gate(db, second)) == ([first], "concurrency")
    started(Holder(db), first)


# -- concurrency --------------------------------------------------------------------------------


def test_as_many_of_a_key_are_let_in_as_its_limit_says(db: Database, worker: Holder) -> None:
    ids = [gated(worker.conn, concurrency=("c", 2)) for _ in range(5)]
    look(worker.conn)
    jobs = started(worker, *ids[:2])
    look(worker.conn)
    assert started(worker) == []
    claim = worker.claim(9, acks=jobs[:1])
    assert claim.ids == [ids[2]]
    claim = worker.claim(9, acks=[jobs[1], *claim.jobs])
    assert claim.ids == ids[3:]


def test_each_job_has_the_limit_that_it_came_with(db: Database, worker: Holder) -> None:
    """A lower limit waits for its turn, and those behind it with it: else it could wait for ever."""
    wide = [gated(worker.conn, concurrency=("c", 3)) for _ in range(2)]
    narrow = gated(worker.conn, concurrency=("c", 1))
    behind = gated(worker.conn, concurrency=("c", 3))
    look(worker.conn)
    jobs = started(worker, *wide)
    assert worker.claim(9, acks=jobs[:1]).ids == []
    claim = worker.claim(9, acks=jobs[1:])
    # Behind the narrow one there is room for one more of a limit of three.
    assert claim.ids == [narrow, behind]


def test_a_retry_and_a_snooze_give_their_place_away_and_wait_for_one_again(db: Database, worker: Holder) -> None:
    first, second, third = (gated(worker.conn, concurrency=("c", 1)) for _ in range(3))
    look(worker.conn)
    [(_, (status, due_s))] = worker.settle(started(worker, first), "failed", error="E", base_s=60.0).items()
    assert status == "queued"
    assert due_s is not None
    assert 20 < due_s < 200, "told is when it is due, not when it was parked for"
    assert at_gate(db, first) == "concurrency"
    look(worker.conn)
    jobs = started(worker, second)
    worker.settle(jobs, "snoozed", delay_s=0.0)
    look(worker.conn)
    # The snoozed one is due after the third, which has waited for longer.
    [run] = started(worker, third)
    db.rows("select supervisor.reschedule_job(%s)", [[first]])
    claim = worker.claim(9, acks=[run])
    assert claim.ids == [second]
    assert worker.claim(9, acks=claim.jobs).ids == [first]


def test_released_and_suspect_jobs_keep_their_place(db: Database, worker: Holder) -> None:
    first, second = (gated(worker.conn, concurrency=("c", 1)) for _ in range(2))
    look(worker.conn)
    worker.settle(started(worker, first), "released")
    look(worker.conn)
    worker.settle(started(worker, first), "suspect")
    look(worker.conn)
    [job] = started(worker, first)
    assert (job.suspect, at_gate(db, second)) == (True, "concurrency")


def test_jobs_that_are_due_later_take_no_place_until_then(db: Database, worker: Holder) -> None:
    late = gated(worker.conn, concurrency=("c", 1), delay_s=0.4)
    now = gated(worker.conn, concurrency=("c", 1))
    looked = look(worker.conn)
    assert looked.next_s is not None
    assert 0 < looked.next_s <= 0.4
    jobs = started(worker, now)
    db.wait_for("select count(*)::int from supervisor.gate_note where at <= clock_timestamp()", 1)
    look(worker.conn)
    assert at_gate(db, late) == "concurrency"
    assert worker.claim(9, acks=jobs).ids == [late]


def test_a_waiting_job_can_be_given_another_time(db: Database, worker: Holder) -> None:
    late = gated(worker.conn, concurrency=("c", 1), delay_s=3600)
    look(worker.conn)
    assert db.rows("select id from supervisor.reschedule_job(%s)", [[late]]) == [(late,)]
    look(worker.conn)
    assert let_in(db) == [late]
    # One that was let in and is put off gives its place to the next.
    other = gated(worker.conn, concurrency=("c", 1))
    db.rows("select supervisor.reschedule_job(%s, p_delay => '1 hour')", [[late]])
    look(worker.conn)
    assert (let_in(db), at_gate(db, late)) == ([other], "concurrency")
    assert stored(db, late)["run_at"] < "9999"


def test_hundreds_are_let_in_by_few_looks(db: Database, worker: Holder) -> None:
    ids = [gated(worker.conn, concurrency=("c", 1000)) for _ in range(250)]
    let = [look(worker.conn).let_in for _ in range(4)]
    assert (sum(let), let_in(db)) == (250, ids)


# -- rate ---------------------------------------------------------------------------------------


def rest(db: Database, key: str = "r", seconds: float = 60.0) -> None:
    """As if so much time had passed since the last start of a key."""
    db.execute(
        "update supervisor.rate set started_at = started_at - make_interval(secs => %s) where key = %s", [seconds, key]
    )
    db.execute(
        "update supervisor.job set started_at = started_at - make_interval(secs => %s)"
        " where id in (select job_id from supervisor.gated where rate_key = %s)",
        [seconds, key],
    )
    bring_notes(db)


def test_jobs_of_a_rate_start_one_by_one_and_never_sooner_than_that(db: Database, worker: Holder) -> None:
    first, second, third = (gated(worker.conn, rate=("r", 10, MINUTE)) for _ in range(3))
    look(worker.conn)
    assert let_in(db) == [first]
    rest(db)
    look(worker.conn)
    assert let_in(db) == [first], "one that has not been claimed yet may start at any moment"
    jobs = started(worker, first)
    bring_notes(db)
    looked = look(worker.conn)
    assert at_gate(db, second) == "rate"
    assert looked.next_s is not None
    assert 5 < looked.next_s <= 6, "the note is for the moment when it may go"
    rest(db, seconds=6)
    look(worker.conn)
    started(worker, second)
    worker.ack(*jobs)
    rest(db, seconds=5)
    look(worker.conn)
    assert at_gate(db, third) == "rate"
    rest(db, seconds=1)
    look(worker.conn)
    started(worker, third)


@pytest.mark.parametrize("end", ["ack", "done", "failed", "released", "dead", "interrupted", "crashed"])
def test_the_start_of_a_run_counts_however_it_ends(db: Database, worker: Holder, end: str) -> None:
    first, second = (gated(worker.conn, rate=("r", 10, MINUTE)) for _ in range(2))
    look(worker.conn)
    jobs = started(worker, first)
    if end == "ack":
        worker.ack(*jobs)
    else:
        worker.settle(jobs, end, error="E", base_s=0.0, cap_s=0.0)
    bring_notes(db)
    looked = look(worker.conn)
    assert (let_in(db), looked.let_in) == ([], 0)
    rest(db)
    look(worker.conn)
    [job] = started(worker, first if end in ("released", "interrupted") else second)  # at its old place
    if end in ("failed", "crashed"):
        worker.ack(job)
        rest(db)
        look(worker.conn)
        started(worker, first)


def test_a_clock_that_was_set_back_does_not_stop_a_key(db: Database, worker: Holder) -> None:
    gated(worker.conn, rate=("r", 1, SECOND))
    db.execute("insert into supervisor.rate values ('r', now() + interval '1 hour', now() + interval '2 hours')")
    assert look(worker.conn).let_in == 1


def test_starts_are_kept_no_longer_than_they_matter(db: Database, worker: Holder) -> None:
    for _ in range(2):
        gated(worker.conn, rate=("r", 60_000, MINUTE))
        look(worker.conn)
        worker.ack(*worker.claim(1).jobs)
        rest(db)
    look(worker.conn)
    db.execute("update supervisor.rate set until = until - interval '1 hour'")
    db.rows("select supervisor.prune('1 day', '1 day', 100)")
    assert db.value("select count(*)::int from supervisor.rate") == 0


# -- several gates at once ----------------------------------------------------------------------


def test_gates_are_passed_in_their_order(db: Database, worker: Holder) -> None:
    [parent] = enqueue(worker.conn)
    before = gated(worker.conn, order="a")
    place = gated(worker.conn, concurrency=("c", 1))
    look(worker.conn)
    job = gated(worker.conn, order="a", concurrency=("c", 1), rate=("r", 1, MINUTE), after=[parent])
    look(worker.conn)
    assert at_gate(db, job) == "parents"
    runs = {run.id: run for run in worker.claim(9).jobs}
    worker.ack(runs[parent])
    look(worker.conn)
    assert at_gate(db, job) == "order"
    worker.ack(runs[before])
    look(worker.conn)
    assert at_gate(db, job) == "concurrency"
    worker.ack(runs[place])
    look(worker.conn)
    assert at_gate(db, job) == "rate"
    look(worker.conn)
    assert let_in(db) == [job]
    worker.ack(*started(worker, job))
    assert db.value("select count(*)::int from supervisor.gated") == 0


def test_one_that_waits_for_its_rate_has_its_turn_and_its_place(db: Database, worker: Holder) -> None:
    rate = ("r", 1, MINUTE)
    first = gated(worker.conn, order="a", concurrency=("c", 1), rate=rate)
    second = gated(worker.conn, order="a")
    third = gated(worker.conn, concurrency=("c", 1))
    for _ in range(3):
        look(worker.conn)
    worker.settle(started(worker, first), "released")
    look(worker.conn)
    assert [at_gate(db, job) for job in (first, second, third)] == ["rate", "order", "concurrency"]
    rest(db)
    look(worker.conn)
    worker.settle(started(worker, first), "failed", error="E", base_s=600.0)
    look(worker.conn)
    assert [at_gate(db, job) for job in (first, second)] == ["concurrency", "order"]
    started(worker, third)


# -- parents ------------------------------------------------------------------------------------


def test_a_child_waits_for_all_its_parents(db: Database, worker: Holder) -> None:
    parents = enqueue(worker.conn, 3)
    child = gated(worker.conn, after=[*parents, *parents])
    look(worker.conn)
    jobs = worker.claim(9).jobs
    for job in jobs[:2]:
        worker.ack(job)
        look(worker.conn)
        assert at_gate(db, child) == "parents"
    assert notes(db) == []
    worker.ack(jobs[2])
    look(worker.conn)
    started(worker, child)
    assert db.value("select count(*)::int from supervisor.job_after") == 0


def test_parents_that_have_ended_before_are_no_reason_to_wait(db: Database, worker: Holder) -> None:
    done = enqueue(worker.conn, 2)
    worker.ack(*worker.claim(9).jobs)
    child = gated(worker.conn, after=[*done, 1_000_000])
    look(worker.conn)
    started(worker, child)


def test_a_parent_that_runs_again_is_waited_for(db: Database, worker: Holder) -> None:
    [parent] = enqueue(worker.conn)
    child = gated(worker.conn, after=[parent])
    look(worker.conn)
    worker.settle(started(worker, parent), "failed", error="E", base_s=0.0, cap_s=0.0)
    look(worker.conn)
    assert at_gate(db, child) == "parents"
    worker.settle(started(worker, parent), "done")
    look(worker.conn)
    started(worker, child)


@pytest.mark.parametrize("before", [False, True], ids=["dies while waited for", "is dead when asked for"])
@pytest.mark.parametrize("failed", ["hold", "cancel", "run"])
def test_a_dead_parent_holds_or_cancels_or_is_passed_over(
    db: Database, worker: Holder, failed: str, before: bool
) -> None:
    [parent] = enqueue(worker.conn)
    [other] = enqueue(worker.conn, queue="elsewhere")
    job = worker.claim(9).jobs
    if before:
        worker.settle(job, "dead", error="E")
    child = gated(worker.conn, after=[other, parent], failed=failed)
    grandchild = gated(worker.conn, after=[child], failed="cancel")
    look(worker.conn)
    if not before:
        worker.settle(job, "dead", error="E")
        look(worker.conn)
    if failed == "cancel":
        look(worker.conn)  # the grandchild's note came with the child's end
        found = stored(db, child)
        assert (found["status"], found["reason"]) == ("cancelled", "parent")
        assert found["last_error"] == f"job {parent}, which this one waited for, is dead"
        assert stored(db, grandchild)["reason"] == "parent"
        return
    assert (at_gate(db, child), at_gate(db, grandchild)) == ("parents", "parents")
    [last] = worker.claim(9, lanes=[Lane("elsewhere", 0)]).jobs
    worker.ack(last)
    look(worker.conn)
    if failed == "run":
        started(worker, child)
        return
    assert at_gate(db, child) == "parents"
    db.rows("select supervisor.retry_job(%s)", [[parent]])
    look(worker.conn)
    assert at_gate(db, child) == "parents"
    worker.ack(*started(worker, parent))
    look(worker.conn)
    started(worker, child)


def test_a_child_of_a_forgotten_dead_parent_is_cancelled_and_says_why(db: Database, worker: Holder) -> None:
    [parent] = enqueue(worker.conn)
    child = gated(worker.conn, after=[parent])
    look(worker.conn)
    worker.settle(started(worker, parent), "dead", error="E")
    look(worker.conn)
    db.execute("update supervisor.dead_letter set finished_at = now() - interval '40 d'")
    busy = db.connect(autocommit=False)
    busy.execute("select from supervisor.job where id = %s for update", [child])
    db.rows("select supervisor.prune('30 d', '30 d', 100)")
    assert stored(db, parent)["status"] == "dead", "not before its child could be told"
    busy.rollback()
    db.rows("select supervisor.prune('30 d', '30 d', 100)")
    assert stored(db, parent) == {}
    assert (stored(db, child)["reason"], db.value("select count(*)::int from supervisor.job_after")) == ("parent", 0)
    assert "forgotten" in stored(db, child)["last_error"]


def test_pruning_a_dead_job_frees_the_key_it_held_and_its_rows(db: Database, worker: Holder) -> None:
    first, second = gated(worker.conn, order="a", hold=True), gated(worker.conn, order="a")
    look(worker.conn)
    worker.settle(started(worker, first), "dead", error="E")
    look(worker.conn)
    db.execute("update supervisor.dead_letter set finished_at = now() - interval '40 d'")
    db.rows("select supervisor.prune('30 d', '30 d', 100)")
    look(worker.conn)
    started(worker, second)
    assert db.value("select count(*)::int from supervisor.gated where job_id = %s", [first]) == 0


def test_a_cancelled_child_waits_for_its_parents_again_when_it_is_retried(db: Database, worker: Holder) -> None:
    [parent] = enqueue(worker.conn)
    child = gated(worker.conn, after=[parent])
    look(worker.conn)
    db.rows("select supervisor.cancel_job(%s)", [[child]])
    db.rows("select supervisor.retry_job(%s)", [[child]])
    look(worker.conn)
    assert at_gate(db, child) == "parents"
    worker.ack(*started(worker, parent))
    look(worker.conn)
    started(worker, child)


def test_a_child_of_thousands_costs_each_end_little(db: Database, worker: Holder) -> None:
    """Not each end looks at all of them: that would be their square."""
    parents = [
        row[0]
        for row in db.rows("insert into supervisor.job (kind) select 'k' from generate_series(1, 3000) returning id")
    ]
    child = gated(worker.conn, after=parents)
    look(worker.conn)
    jobs = worker.claim(3000).jobs
    before = pages(worker.conn)
    for job in jobs[:50]:
        worker.ack(job)
        look(worker.conn)
    assert pages(worker.conn) - before < 50 * 500
    worker.ack(*jobs[50:])
    while look(worker.conn).looked:
        pass
    started(worker, child)


def pages(conn: Conn) -> int:
    """Pages of this database's tables that were asked for, ever."""
    conn.execute("select pg_stat_force_next_flush()")
    row = conn.execute(
        "select sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)::bigint from pg_statio_user_tables"
    ).fetchone()
    assert row is not None
    return int(row[0])


# -- replaced, told, counted --------------------------------------------------------------------


def test_a_job_that_becomes_another_leaves_its_gates(db: Database, worker: Holder) -> None:
    [parent] = enqueue(worker.conn)
    first, second = gated(worker.conn, order="a", after=[parent]), gated(worker.conn, order="a")
    look(worker.conn)
    with worker.conn.transaction():
        worker.conn.execute("select from supervisor.job where id = %s for no key update", [first])
        worker.conn.execute("select supervisor.ungate(%s)", [first])
        worker.conn.execute("update supervisor.job set gated = null, run_at = now() where id = %s", [first])
    look(worker.conn)
    assert let_in(db) == [second]
    assert db.value("select count(*)::int from supervisor.job_after") == 0


def test_waiting_supervisors_are_told_once_of_gates_and_not_of_jobs_nobody_can_claim(
    db: Database, worker: Holder
) -> None:
    listener = db.connect()
    listener.execute("listen supervisor")
    gated(worker.conn, order="a")
    db.execute("insert into supervisor.waiting values (1)")
    gated(worker.conn, order="b")
    [told] = [notice.payload for notice in listener.notifies(timeout=1.0, stop_after=1)]
    assert '"gate" : true' in told
    look(worker.conn)
    [told] = [notice.payload for notice in listener.notifies(timeout=1.0, stop_after=1)]
    assert '"queue" : "default"' in told
    assert list(listener.notifies(timeout=0.1)) == []


def test_what_waits_is_no_next_job_for_anybody(db: Database, worker: Holder) -> None:
    gated(worker.conn, order="a")
    claim = worker.claim(5)
    assert (claim.jobs, claim.next_s) == ([], None)
    [(due, next_s)] = db.rows(
        "select due, next_s from supervisor.low_water('{default}', '{0}', '{1970-01-01}', '{0}', '1 s')"
    )
    assert (due, next_s) == (False, None)


def test_one_look_at_a_time(db: Database, worker: Holder) -> None:
    gated(worker.conn, order="a")
    other = db.connect(autocommit=False)
    look(other)
    assert look(worker.conn).looked == -1
    other.rollback()
    assert look(worker.conn).let_in == 1


def test_a_transaction_with_one_snapshot_is_refused(db: Database) -> None:
    conn = db.connect(autocommit=False)
    conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with pytest.raises(psycopg.Error, match="READ COMMITTED"):
        look(conn)


async def test_the_typed_function_says_the_same(db: Database) -> None:
    async with await db.aconnect() as conn:
        gated(db.connect(), order="a")
        passed = await tend.pass_gates(conn, "supervisor", since=0.0, most=10)
        assert (passed.looked, passed.let_in, passed.next_s) == (1, 1, None)


# -- what it costs ------------------------------------------------------------------------------


def fill(db: Database, waiting: int) -> None:
    """So many that wait, of each kind, in the same lane as everything else."""
    db.execute(
        "with added as (insert into supervisor.job (kind, gated, run_at)"
        "   select 'k', true, supervisor.parked_at() from generate_series(1, %s) returning id)"
        " insert into supervisor.gated (job_id, gate, due_at, ordering_key, concurrency_key, concurrency_limit,"
        "   rate_key, rate_limit, rate_period)"
        " select id, 2 + id %% 3, now(), case when id %% 3 = 0 then 'o' || id %% 7 end,"
        "   case when id %% 3 = 1 then 'c' || id %% 7 end, case when id %% 3 = 1 then 2 end,"
        "   case when id %% 3 = 2 then 'r' || id %% 7 end, case when id %% 3 = 2 then 2 end,"
        "   case when id %% 3 = 2 then interval '1 hour' end from added",
        [waiting],
    )


def test_a_hundred_thousand_that_wait_cost_claims_nothing(db: Database, worker: Holder) -> None:
    def costs() -> tuple[int, int]:
        enqueue(worker.conn, 6)
        claim = buffers(worker.conn, lambda to: work(to, worker.session, 5))
        acks = [Held(row[0], row[1], 1, "k", "default", 0, None, "", "", 0, False) for row in db.rows(
            "select id, claims from supervisor.job where lease is not null")]  # fmt: skip
        return claim, buffers(worker.conn, lambda to: work(to, worker.session, 5, acks=acks))

    for _ in range(6):
        worker.claim(5)
    before = [costs() for _ in range(3)]
    fill(db, 100_000)
    after = [costs() for _ in range(3)]
    for without, with_them in zip(zip(*before, strict=True), zip(*after, strict=True), strict=True):
        assert max(with_them) <= 1.5 * max(without) + 10, (before, after)


@pytest.mark.pg("15")
@pytest.mark.parametrize("statistics", ["absent", "fresh", "misleading"])
def test_no_statement_of_gates_scans_or_sorts(db: Database, statistics: str) -> None:
    """Of jobs, of those that wait, of notes, links and starts: index ranges only, whatever the planner believes."""
    db.execute("alter table supervisor.gated set (autovacuum_enabled = off)")
    explained = Explained(db)
    tables = ("job", "gated", "gate_note", "job_after", "rate")

    def everything() -> None:
        holder = Holder(db)
        holder.conn = explained.conn
        conn = holder.conn
        [parent] = enqueue(conn, queue="p")
        for _ in range(2):
            gated(conn, order="o", concurrency=("c", 1), rate=("r", 50, SECOND))
            gated(conn, concurrency=("d", 1))
        gated(conn, after=[parent])
        for _ in range(4):
            look(conn)
        jobs = holder.claim(4).jobs
        holder.claim(4, acks=jobs[:1])
        settle(conn, holder.session, jobs[1:2], "failed", error="E")
        held = holder.claim(4, lanes=[Lane("p", 0)]).jobs
        holder.claim(4, acks=held)
        bring_notes(db)
        for _ in range(3):
            look(conn)

    if statistics == "misleading":
        db.execute("vacuum analyze")
    everything()
    db.execute("delete from supervisor.job; delete from supervisor.gated; delete from supervisor.gate_note")
    fill(db, 30_000)
    if statistics == "fresh":
        db.execute("vacuum analyze")
    explained.plans.clear()
    everything()
    own = [
        (query, plan) for query, plan in explained.plans
        if "gate" in query or "job_after" in query or ".rate" in query
    ]  # fmt: skip
    assert len(own) > 30
    wrong = [
        (node["Node Type"], node["Relation Name"], query)
        for query, plan in own
        for node in nodes(plan)
        if node.get("Relation Name") in tables and node["Node Type"] in ("Seq Scan", "Bitmap Heap Scan")
    ]
    wrong += [(fault, "job", query) for query, plan in own for fault in faults(plan)]
    assert wrong == []


def test_a_look_over_what_an_old_snapshot_keeps_starts_at_its_mark(db: Database, worker: Holder) -> None:
    """Notes that were taken stay in the index; whoever has read them once need not do it again."""
    pin = db.connect(autocommit=False)
    pin.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    pin.execute("select count(*) from supervisor.gate_note")
    db.execute("insert into supervisor.gate_note (gate, key) select 2, 'none' from generate_series(1, 20000)")
    db.execute("delete from supervisor.gate_note")
    since = float(db.value("select extract(epoch from clock_timestamp())::float8"))
    gated(worker.conn, order="a")
    full, marked = (
        buffers(worker.conn, lambda to, since=since: look(to, since=since))  # type: ignore[misc]
        for since in (0.0, since)
    )
    assert marked < full / 2, (full, marked)
