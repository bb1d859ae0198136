"""Settings of queues in the database: whatever workers do, no more jobs run than the settings allow.

Elsewhere: what a service makes of them (tests/process/test_queues.py); the plans (test_plans.py).
"""

import json
import random
import threading
from typing import Any

import psycopg
import pytest

from supervisor.db import queues
from supervisor.db.jobs import SUSPECTS, Lane, Mark, numbers, quoted
from supervisor.db.statements import statement
from tests.db.test_plans import buffers
from tests.support.database import Database
from tests.support.queue import (
    Conn,
    Held,
    Holder,
    close_session,
    enqueue,
    expire,
    move_session,
    new_session_id,
    open_session,
    reap,
    sweep,
    work,
)
from tests.support.queues import count, counted, limit, settings
from tests.support.sizes import FULL
from tests.support.waiting import wait_until

Q = (Lane("q", 0), Lane("q", SUSPECTS))
BOTH = (Lane("q", 0), Lane("other", 0))


def running(db: Database, queue: str = "q") -> int:
    found = db.value("select count(*)::int from supervisor.job where queue = %s and lease is not null", [queue])
    return int(found)


# -- orders -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("set_queue('q', max_running => 0)", "max_running is 0, must be 1 to 10000"),
        ("set_queue('q', max_running => -3)", "max_running is -3, must be 1 to 10000"),
        ("set_queue('q', max_running => 10001)", "max_running is 10001, must be 1 to 10000"),
        ("set_queue('q')", "nothing to set: give max_running or rate_limit"),
        ("set_queue('', max_running => 1)", "queue must be 1 to 128 bytes long, not 0"),
        ("set_queue(null, max_running => 1)", "queue must be 1 to 128 bytes long, not null"),
        ("set_queue(repeat('x', 129), max_running => 1)", "queue must be 1 to 128 bytes long, not 129"),
        ("unset_queue('')", "queue must be 1 to 128 bytes long, not 0"),
        ("pause_queue('')", "queue must be 1 to 128 bytes long, not 0"),
        ("pause_queue('q', by => repeat('x', 201))", "by must be at most 200 bytes long, not 201"),
        ("resume_queue(null)", "queue must be 1 to 128 bytes long, not null"),
    ],
)
def test_bad_settings_are_refused_before_any_write(db: Database, call: str, text: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
        db.execute(f"select supervisor.{call}")
    assert refused.value.diag.message_primary == text
    assert settings(db) == []


def test_each_order_says_whether_it_changed_something_and_leaves_no_row_behind(db: Database) -> None:
    def ask(call: str) -> Any:
        return db.value(f"select supervisor.{call}")

    assert (ask("resume_queue('q')"), ask("unset_queue('q')")) == (False, False)
    assert (ask("pause_queue('q', by => 'ann')"), ask("pause_queue('q', by => 'bob')")) == (True, False)
    [one] = settings(db)
    assert (one.name, one.paused, one.paused_by, one.max_running, one.running) == ("q", True, "ann", None, None)
    limit(db, 3)
    assert ask("resume_queue('q')") is True
    [one] = settings(db)
    assert (one.paused, one.paused_by, one.max_running, one.running) == (False, None, 3, 0)
    assert ask("unset_queue('q')") is True
    assert settings(db) == []
    assert db.value("select count(*)::int from supervisor.place") == 0


def test_an_order_is_told_when_its_transaction_commits(db: Database) -> None:
    """Older releases take it for a wake-up: queue, priorities and at are what they read."""
    listening = db.connect()
    listening.execute("listen supervisor")
    with db.connect(autocommit=False) as conn:
        conn.execute("select supervisor.pause_queue('q')")
        assert list(listening.notifies(timeout=0.2)) == []
        conn.commit()
    [told] = listening.notifies(timeout=5, stop_after=1)
    said = json.loads(told.payload)
    assert (said["queue"], said["priorities"], said["at"] > 0) == ("q", [], True)
    assert said["settings"] == {
        "paused": True, "max_running": None, "counted": False, "rate_limit": None, "rate_period": None
    }  # fmt: skip


# -- pause --------------------------------------------------------------------------------------


def test_nothing_is_claimed_of_a_paused_queue_and_its_neighbours_are(db: Database) -> None:
    worker = Holder(db)
    waiting, others = enqueue(worker.conn, 3, queue="q"), enqueue(worker.conn, 2, queue="other")
    db.rows("select supervisor.pause_queue('q')")
    claim = worker.claim(10, lanes=BOTH)
    assert (sorted(claim.ids), claim.short, claim.blocked) == (others, True, False)
    assert claim.unread == (Lane("q", 0),)
    assert enqueue(worker.conn, 1, queue="q")
    db.rows("select supervisor.resume_queue('q')")
    assert worker.claim(3, lanes=BOTH, marks=claim.marks).ids == waiting


def test_a_paused_job_is_not_due_and_a_later_one_wakes_nobody(db: Database) -> None:
    worker = Holder(db)
    enqueue(worker.conn, 1, queue="q")
    enqueue(worker.conn, 1, queue="q", delay="1 hour")
    assert low_water(worker.conn, Lane("q", 0))[:2] == (True, True)
    db.rows("select supervisor.pause_queue('q')")
    assert low_water(worker.conn, Lane("q", 0))[:2] == (False, False)
    assert worker.claim(5, lanes=Q).next_s is None


def low_water(conn: Conn, lane: Lane) -> tuple[bool, bool, Mark]:
    """Whether a job is due, whether a later one is known, and the mark."""
    row = conn.execute(
        statement("low_water", "supervisor"),
        {
            "queues": quoted([lane.queue]), "priorities": numbers([lane.priority]),
            "mark_at": quoted([Mark().at]), "mark_id": numbers([0]), "lookback_s": 1.0,
        },
    ).fetchone()  # fmt: skip
    assert row is not None
    return row[3], row[4] is not None, Mark(row[1], row[2])


def test_a_paused_queues_jobs_are_not_taken_for_ones_of_unknown_kinds(db: Database) -> None:
    """They are due for long, but nobody who knows them was let near."""
    conn = db.connect()
    enqueue(conn, 1, queue="q")
    enqueue(conn, 1, queue="other")
    db.rows("select supervisor.pause_queue('q')")
    moved = conn.execute(
        "select moved from supervisor.put_back('{q,other}', '{0,0}', %s, '{0,0}', '{x}', -1, 60, 10)",
        [quoted([Mark().at] * 2)],
    ).fetchone()
    assert moved == (1,)
    assert db.rows("select queue from supervisor.job where unknown_since is null") == [("q",)]


def test_running_jobs_of_a_paused_queue_end_as_ever(db: Database) -> None:
    worker = Holder(db)
    enqueue(worker.conn, 3, queue="q")
    done, failed, released = worker.claim(3, lanes=Q).jobs
    db.rows("select supervisor.pause_queue('q')")
    assert worker.ack(done).acked == 1
    assert worker.settle(failed, "failed", error="E")[failed.id][0] == "queued"
    assert worker.settle(released, "released")[released.id][0] == "queued"
    assert worker.claim(3, lanes=Q).ids == []


# -- limits -------------------------------------------------------------------------------------


def test_no_more_run_than_the_limit_and_each_end_makes_room(db: Database) -> None:
    """However a run ends: done, failed, dead, released, its session ended."""
    one, two = Holder(db), Holder(db)
    enqueue(one.conn, 20, queue="q")
    limit(db, 2)
    first = one.claim(10, lanes=Q)
    assert (len(first.jobs), first.short, first.blocked, set(first.limited)) == (2, True, True, {"q"})
    assert first.unread == Q
    assert (two.claim(10, lanes=Q).jobs, two.claim(10, lanes=Q).blocked) == ([], True)
    held = list(first.jobs)
    for event in ("failed", "dead", "snoozed", "released", "crashed", "done"):
        one.settle(held.pop(), event, error="E", delay_s=3600.0)
        [job] = two.claim(10, lanes=Q).jobs
        two.ack(job)
        held += one.claim(10, lanes=Q).jobs
        assert (len(held), running(db)) == (2, 2)
    # An ack and the next claim travel together.
    both = work(one.conn, one.session, 10, lanes=Q, acks=held)
    assert (both.acked, len(both.jobs), running(db)) == (2, 2, 2)


def test_a_crashed_job_never_keeps_its_place(db: Database) -> None:
    """B17: limit 1, its holder is lost; the job runs again, and then the next one. Limit 3 and 3 at once: the same."""
    for most in (1, 3):
        queue = f"q{most}"
        lanes = [Lane(queue, 0)]
        lost, other = Holder(db), Holder(db)
        first = enqueue(lost.conn, most, queue=queue)
        enqueue(lost.conn, 1, queue=queue)
        limit(db, most, queue)
        assert lost.claim(10, lanes=lanes).ids == first
        expire(db, lost.session)
        assert other.claim(10, lanes=lanes).blocked, "its lease has passed, but nobody has reaped it"
        assert reap(other.conn) == {lost.session}
        swept = sweep(other.conn, lanes[0], base_s=0.0, cap_s=0.0)
        assert {job: what for job, (what, _) in swept.items()} == dict.fromkeys(first, "crashed")
        again = other.claim(10, lanes=lanes)
        assert len(again.jobs) == most
        assert len(work(other.conn, other.session, 10, lanes=lanes, acks=again.jobs).jobs) == 1


def test_a_session_that_moves_keeps_its_places_and_one_that_ends_frees_them(db: Database) -> None:
    one, two = Holder(db), Holder(db)
    enqueue(one.conn, 5, queue="q")
    limit(db, 2)
    held = one.claim(2, lanes=Q).jobs
    moved = new_session_id()
    assert move_session(one.conn, one.session, moved, held) == {job.id for job in held}
    assert two.claim(5, lanes=Q).blocked
    close_session(one.conn, moved)
    assert len(sweep(two.conn, Q[0])) == 2
    assert len(two.claim(5, lanes=Q).jobs) == 2


def test_suspects_and_ordinary_jobs_share_the_places(db: Database) -> None:
    worker = Holder(db)
    enqueue(worker.conn, 4, queue="q")
    limit(db, 2)
    suspect = worker.claim(1, lanes=Q).jobs
    worker.settle(suspect, "suspect")
    assert len(worker.claim(2, lanes=[Q[0]]).jobs) == 2
    alone = worker.claim(1, lanes=[Q[1]])
    assert (alone.jobs, alone.blocked) == ([], True)
    assert low_water(worker.conn, Q[1])[0] is False, "nobody is to become quiet for a suspect that has no place"


def test_a_worker_takes_no_more_than_it_has_hands_for_and_says_that_there_are_more(db: Database) -> None:
    worker, other = Holder(db), Holder(db)
    enqueue(worker.conn, 10, queue="q")
    plain = enqueue(worker.conn, 10, queue="other")
    limit(db, 8)
    claim = worker.claim(30, lanes=BOTH, hands=3)
    assert (len(claim.jobs), set(plain) < set(claim.ids), claim.left, claim.blocked) == (13, True, True, False)
    none = worker.claim(30, lanes=BOTH, hands=0)
    assert (none.jobs, none.left, none.blocked) == ([], True, False)
    assert none.unread == (Lane("q", 0),)
    assert len(other.claim(30, lanes=BOTH).jobs) == 5
    full = worker.claim(30, lanes=BOTH, hands=0)
    assert (full.jobs, full.left) == ([], False), "nobody is to be woken for a queue that is full"


def test_limits_change_while_jobs_run(db: Database) -> None:
    """Those above a lowered limit go on, and count."""
    worker = Holder(db)
    enqueue(worker.conn, 30, queue="q")
    limit(db, 5)
    held = worker.claim(30, lanes=Q).jobs
    db.rows("select supervisor.set_queue('q', max_running => 2)")
    while len(held) > 2:
        worker.ack(held.pop())
        assert worker.claim(30, lanes=Q).blocked
    worker.ack(held.pop())
    held += worker.claim(30, lanes=Q).jobs
    assert len(held) == 2
    db.rows("select supervisor.set_queue('q', max_running => 4)")
    held += worker.claim(30, lanes=Q).jobs
    assert len(held) == 4
    db.rows("select supervisor.unset_queue('q')")
    held += worker.claim(10, lanes=Q).jobs
    assert len(held) == 14
    limit(db, 12)
    worker.ack(*held[:2])
    assert worker.claim(30, lanes=Q).blocked
    worker.ack(*held[2:3])
    assert len(worker.claim(30, lanes=Q).jobs) == 1


def test_runs_that_began_before_the_limit_count_even_those_of_a_claim_that_was_under_way(db: Database) -> None:
    early, under_way, late = Holder(db), Holder(db), Holder(db)
    enqueue(early.conn, 10, queue="q")
    assert len(early.claim(2, lanes=Q).jobs) == 2
    under_way.conn.autocommit = False
    assert len(under_way.claim(3, lanes=Q).jobs) == 3
    db.rows("select supervisor.set_queue('q', max_running => 6)")
    nothing = late.claim(10, lanes=Q)
    assert (nothing.jobs, nothing.blocked) == ([], True), "not before the others are counted"
    with pytest.raises(psycopg.errors.LockNotAvailable):
        count(db)
    under_way.conn.commit()
    assert count(db) == [True]
    assert (len(late.claim(10, lanes=Q).jobs), running(db)) == (1, 6)


def test_a_limit_that_was_taken_away_meanwhile_is_not_counted_for_the_next_one(db: Database) -> None:
    worker = Holder(db)
    enqueue(worker.conn, 3, queue="q")
    db.rows("select supervisor.set_queue('q', max_running => 1)")
    [before] = settings(db)
    db.rows("select supervisor.unset_queue('q')")
    worker.claim(1, lanes=Q)
    db.rows("select supervisor.set_queue('q', max_running => 1)")
    assert counted(db, before) is False
    assert worker.claim(1, lanes=Q).jobs == []
    assert count(db) == [True]
    assert (worker.claim(1, lanes=Q).jobs, running(db)) == ([], 1)


def test_counting_reads_a_large_queue_in_parts(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "_READ_AT_ONCE", 7)
    worker = Holder(db)
    for priority in (0, 3, -5):
        enqueue(worker.conn, 10, queue="q", priority=priority)
    lanes = [Lane("q", 3), Lane("q", -5)]
    assert len(worker.claim(13, lanes=lanes).jobs) == 13
    limit(db, 14)
    assert [one.running for one in settings(db)] == [13]
    assert len(worker.claim(13, lanes=[Lane("q", 0)]).jobs) == 1


def test_an_operators_open_transaction_stops_its_queue_and_nothing_else(db: Database) -> None:
    """Acks wait behind no one who changes settings."""
    worker, operator = Holder(db), db.connect(autocommit=False)
    enqueue(worker.conn, 5, queue="q")
    enqueue(worker.conn, 5, queue="other")
    limit(db, 3)
    held = worker.claim(1, lanes=Q).jobs
    operator.execute("select supervisor.set_queue('q', max_running => 5), supervisor.pause_queue('other')")
    worker.conn.execute("set statement_timeout = '5s'")
    claim = work(worker.conn, worker.session, 2, lanes=[Q[0], Lane("other", 0)], acks=held)
    assert (claim.acked, {job.queue for job in claim.jobs}, claim.blocked) == (1, {"other"}, True)
    operator.rollback()
    assert len(worker.claim(5, lanes=Q).jobs) == 3


def test_what_the_release_before_sends_obeys_the_settings_too(db: Database) -> None:
    """Its work() has no hands: a stale worker must not exceed a limit or run what is paused."""
    worker = Holder(db)
    enqueue(worker.conn, 5, queue="q")
    enqueue(worker.conn, 5, queue="other")
    limit(db, 2)
    db.rows("select supervisor.pause_queue('other')")
    old = b"select lane, id from supervisor.work(%s, '{}', '{}', '{}', 1, '{q,other}', '{0,0}', %s, '{0,0}', 50, '1 s')"
    rows = worker.conn.execute(old, [worker.session, quoted([Mark().at] * 2)]).fetchall()
    assert [row[0] for row in rows] == [1, 1, None]
    assert (running(db), running(db, "other")) == (2, 0)


# -- marks --------------------------------------------------------------------------------------


def test_the_mark_of_a_paused_or_full_lane_stays_before_its_jobs(db: Database) -> None:
    """Whoever claims elsewhere meanwhile, and the parent, must not think that such a lane was read to its end."""
    worker, other = Holder(db), Holder(db)
    db.execute(
        "insert into supervisor.job (kind, queue, run_at)"
        " select 'k', q, clock_timestamp() - interval '1 min' from unnest(array['q', 'other']) q, generate_series(1, 3)"
    )
    limit(db, 1)
    held = other.claim(1, lanes=Q).jobs
    claim = worker.claim(10, lanes=BOTH, lookback_s=0.25)
    assert (claim.short, claim.unread, set(claim.marks)) == (True, (Lane("q", 0),), {Lane("other", 0)})
    # What is left over is the first that is not claimed: a tender's mark is that row or a lower one.
    left = db.value("select min(id) from supervisor.job where queue = 'q' and lease is null")
    assert low_water(worker.conn, Lane("q", 0))[2].id == left
    other.ack(*held)
    assert worker.claim(10, lanes=BOTH, marks=claim.marks, lookback_s=0.25).ids == [left]


@pytest.mark.parametrize("state", ["paused", "full"])
def test_a_hundred_thousand_jobs_that_may_not_run_cost_claims_nothing(db: Database, state: str) -> None:
    """Pages of a claim of another queue, and of a claim of their own, with them at the head and without."""
    worker = Holder(db)
    lanes = [Lane("q", -5), Lane("q", 0), Lane("other", 0)]
    limit(db, 1) if state == "full" else db.rows("select supervisor.pause_queue('q')")
    for _ in range(6):  # the plans are cached while there is nothing
        worker.claim(5, lanes=lanes)

    def costs() -> tuple[int, int]:
        enqueue(worker.conn, 5, queue="other")
        others = buffers(worker.conn, lambda to: work(to, worker.session, 5, lanes=lanes))
        own = buffers(worker.conn, lambda to: work(to, worker.session, 5, lanes=lanes[:2]))
        db.execute("delete from supervisor.job where queue = 'other'")
        return others, own

    enqueue(worker.conn, 2, queue="q", priority=-5)
    if state == "full":
        assert len(worker.claim(5, lanes=lanes).jobs) == 1
    before = [costs() for _ in range(3)]
    db.execute(
        "insert into supervisor.job (kind, queue, priority)"
        " select 'k', 'q', -5 * (n %% 2) from generate_series(1, %s) n",
        [100_000],
    )
    after = [costs() for _ in range(3)]
    for without, with_them in zip(zip(*before, strict=True), zip(*after, strict=True), strict=True):
        assert max(with_them) <= 1.5 * max(without) + 10, (before, after)


# -- everything at once -------------------------------------------------------------------------


@pytest.mark.pg("15", "18")
@pytest.mark.timeout(300)
def test_eight_claimers_never_exceed_a_limit_that_changes(db: Database) -> None:
    """By count: what is leased, after every claim; with runs that end in every way and holders that are lost."""
    jobs, most = (4000, 5) if FULL else (500, 3)
    admin = db.connect()
    enqueue(admin, jobs, queue="q")
    limit(db, most)
    allowed = [most]
    seen: list[tuple[int, int]] = []
    faults: list[BaseException] = []
    stop = threading.Event()

    def claimer(number: int) -> None:
        rng = random.Random(number)
        conn = db.connect()
        session = new_session_id()
        open_session(conn, session)
        held: list[Held] = []
        while not stop.is_set():
            ends = [job for job in held if rng.random() < 0.7]
            held = [job for job in held if job not in ends]
            claim = work(conn, session, rng.randint(1, 4), lanes=Q, acks=ends)
            held += claim.jobs
            if claim.jobs and rng.random() < 0.1:  # lost: its jobs are swept
                close_session(conn, session)
                sweep(conn, Q[0], base_s=0.0, cap_s=0.0)
                session, held = new_session_id(), []
                open_session(conn, session)

    def guarded(number: int) -> None:
        try:
            claimer(number)
        except BaseException as error:
            faults.append(error)
            stop.set()

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()

    def count_and_change() -> bool:
        row = admin.execute("select count(*) from supervisor.job where queue = 'q' and lease is not null").fetchone()
        assert row is not None
        seen.append((row[0], max(allowed[-2:])))
        if len(seen) % 50 == 0:
            allowed.append(2 if allowed[-1] == most else most)
            admin.execute("select supervisor.set_queue('q', max_running => %s)", [allowed[-1]])
        return bool(faults) or db.value("select not exists (select from supervisor.job)")

    try:
        wait_until(count_and_change, 200, "the queue is empty")
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert faults == []
    assert [pair for pair in seen if pair[0] > pair[1]] == []
    assert max(count for count, _ in seen) == most, "the limit was never reached: nothing was shown"
