"""Gates while transactions overlap: nobody is stranded, nobody is let in twice, and no ack waits for anybody.

Each test names the order in which two real connections lock, look and commit. Whatever it is, what waits in the end
is let in by looks alone, and acks have a statement_timeout that a wait would hit.

Elsewhere: what each move does (test_gates.py); everything at once in running services (tests/process/test_gates.py).
"""

import random
import threading
import time
from datetime import timedelta

import pytest

from supervisor import enqueue as insert
from tests.support.database import Database
from tests.support.gates import at_gate, bring_notes, gated, let_in, look
from tests.support.queue import (
    Conn,
    Held,
    Holder,
    enqueue,
    expire,
    new_session_id,
    open_session,
    reap,
    settle,
    stored,
    sweep,
    work,
)
from tests.support.sizes import FULL
from tests.support.waiting import wait_until

SECOND = timedelta(seconds=1)


def held(db: Database, *, order: str | None = None, concurrency: tuple[str, int] | None = None) -> tuple[Holder, Held]:
    """A worker that runs a job with these keys; its acks may wait for nobody."""
    worker = Holder(db)
    gated(worker.conn, order=order, concurrency=concurrency)
    while look(worker.conn).looked:
        pass
    [job] = worker.claim(1).jobs
    worker.conn.execute("set statement_timeout = '2s'")
    return worker, job


def ack_and_claim(worker: Holder, job: Held, limit: int = 9) -> list[int]:
    return worker.claim(limit, acks=[job]).ids


def settled(db: Database) -> list[int]:
    """Let in by looks alone, as their notes fall due."""
    conn = db.connect()
    for _ in range(3):
        bring_notes(db)
        look(conn)
    return let_in(db)


KEYS = [{"order": "a"}, {"concurrency": ("c", 1)}]


@pytest.mark.parametrize("keys", KEYS, ids=["order", "concurrency"])
def test_a_producer_commits_while_an_ack_is_not_committed(db: Database, keys: dict[str, object]) -> None:
    """The ack has looked and seen nobody; the newcomer's own note is looked at after it."""
    worker, job = held(db, **keys)  # type: ignore[arg-type]
    worker.conn.autocommit = False
    assert ack_and_claim(worker, job) == []
    newcomer = gated(db.connect(), **keys)  # type: ignore[arg-type]
    looker = db.connect()
    assert look(looker).let_in == 0, "the key is locked by the ack"
    worker.conn.commit()
    assert settled(db) == [newcomer]


@pytest.mark.parametrize("keys", KEYS, ids=["order", "concurrency"])
def test_an_ack_commits_while_a_producer_is_not_committed(db: Database, keys: dict[str, object]) -> None:
    worker, job = held(db, **keys)  # type: ignore[arg-type]
    producer = db.connect(autocommit=False)
    newcomer = gated(producer, **keys)  # type: ignore[arg-type]
    assert ack_and_claim(worker, job) == []
    assert settled(db) == []
    producer.commit()
    assert settled(db) == [newcomer]


@pytest.mark.parametrize("keys", KEYS, ids=["order", "concurrency"])
def test_an_ack_while_the_gatekeeper_has_looked_and_not_committed(db: Database, keys: dict[str, object]) -> None:
    """Its look saw the key held; the ack cannot have the key's lock, and leaves a note for the next look."""
    worker, job = held(db, **keys)  # type: ignore[arg-type]
    waiting = gated(worker.conn, **keys)  # type: ignore[arg-type]
    looker = db.connect(autocommit=False)
    assert look(looker).looked == 1
    assert ack_and_claim(worker, job) == [], "it did not wait, and let nobody in"
    looker.commit()
    assert settled(db) == [waiting]


@pytest.mark.parametrize("keys", KEYS, ids=["order", "concurrency"])
def test_an_ack_that_is_rolled_back_has_let_nobody_in(db: Database, keys: dict[str, object]) -> None:
    worker, job = held(db, **keys)  # type: ignore[arg-type]
    gated(worker.conn, **keys)  # type: ignore[arg-type]
    worker.conn.autocommit = False
    assert len(ack_and_claim(worker, job)) == 1
    worker.conn.rollback()
    assert settled(db) == [job.id]
    assert db.value("select lease is not null from supervisor.job where id = %s", [job.id])


def test_acks_of_one_key_that_overlap_give_all_places_away(db: Database) -> None:
    """The second cannot have the lock, so it leaves a note; the first saw its place as taken."""
    (one, first), (two, second) = (held(db, concurrency=("c", 2)) for _ in range(2))
    waiting = [gated(one.conn, concurrency=("c", 2)) for _ in range(3)]
    one.conn.autocommit = two.conn.autocommit = False
    assert ack_and_claim(one, first) == waiting[:1]
    assert ack_and_claim(two, second) == []
    two.conn.commit()
    one.conn.commit()
    assert settled(db) == waiting[:2]


def test_a_handlers_own_transaction_keeps_no_key_from_others(db: Database) -> None:
    """ctx.transaction(): its ack may stay uncommitted for long, while others of the key end and start."""
    (one, first), (two, second) = (held(db, concurrency=("c", 2)) for _ in range(2))
    waiting = [gated(one.conn, concurrency=("c", 2)) for _ in range(4)]
    one.conn.autocommit = False
    assert one.ack(first).acked == 1
    assert ack_and_claim(two, second) == waiting[:1], "nothing of the key is locked by the transaction that is open"
    [row] = db.rows("select id, claims from supervisor.job where lease = %s", [two.session])
    again = Held(row[0], row[1], 1, "", "", 0, None, "", "", 0, False)
    assert ack_and_claim(two, again) == waiting[1:2]
    assert settled(db) == [first.id, waiting[1]]
    one.conn.commit()
    assert settled(db) == waiting[1:3]


def test_a_row_that_an_operator_has_locked_is_passed_over_or_waited_for(db: Database) -> None:
    """A cancel that is not committed: of an order its turn may still be its own, of the others the next one goes."""
    worker = Holder(db)
    worker.conn.execute("set statement_timeout = '2s'")
    order = [gated(worker.conn, order="a") for _ in range(2)]
    places = [gated(worker.conn, concurrency=("c", 1)) for _ in range(2)]
    paced = [gated(worker.conn, rate=("r", 1, SECOND)) for _ in range(2)]
    operator = db.connect(autocommit=False)
    operator.execute("select supervisor.cancel_job(%s)", [[order[0], places[0], paced[0]]])
    look(worker.conn)
    assert let_in(db) == [places[1], paced[1]]
    operator.commit()
    assert settled(db) == [order[1], places[1], paced[1]]


def test_an_operators_open_transaction_holds_up_no_ack(db: Database) -> None:
    worker, job = held(db, order="a", concurrency=("c", 1))
    waiting = gated(worker.conn, order="a", concurrency=("c", 1))
    other = gated(worker.conn, concurrency=("c", 1))
    operator = db.connect(autocommit=False)
    operator.execute("select supervisor.cancel_job(%s)", [[waiting, other]])
    assert ack_and_claim(worker, job) == []
    operator.rollback()
    assert set(settled(db)) <= {waiting, other}
    assert len(let_in(db)) == 1


# -- parents ------------------------------------------------------------------------------------


def test_a_child_is_added_while_its_parents_ack_is_not_committed(db: Database) -> None:
    """The ack cannot have seen the link, and the look sees the parent as it was: only the row's lock tells."""
    worker = Holder(db)
    [parent] = enqueue(worker.conn)
    jobs = worker.claim(1).jobs
    worker.conn.autocommit = False
    worker.ack(*jobs)
    child = gated(db.connect(), after=[parent])
    looker = db.connect()
    looked = look(looker)
    assert (looked.let_in, at_gate(db, child)) == (0, "parents")
    assert looked.next_s is not None, "it will look again, whoever tells"
    worker.conn.commit()
    assert settled(db) == [child]


@pytest.mark.pg("15", "16", "18")
@pytest.mark.parametrize("end", ["cancelled", "dead", "replaced and cancelled", "rescheduled and cancelled", "swept"])
def test_nobody_waits_for_a_parents_end_that_is_not_committed(db: Database, end: str) -> None:
    """A row that is changed and then deleted was waited for once, SKIP LOCKED notwithstanding: so the server follows
    a row's newer versions. A look and an end waited for each other."""
    worker = Holder(db)
    parent = insert(worker.conn, "k", unique_key="u").id
    child = gated(worker.conn, after=[parent], failed="run")
    jobs = worker.claim(1).jobs if end in ("dead", "swept") else []
    looker, reader, other = db.connect(), db.connect(), db.connect(autocommit=False)
    for conn in (looker, reader):
        conn.execute("set statement_timeout = '2s'")
    if end == "dead":
        worker.conn.autocommit = False
        other = worker.conn
        worker.settle(jobs, "dead", error="E")
    elif end == "swept":
        expire(db, worker.session)
        reap(db.connect())
        db.execute("update supervisor.job set max_crashes = 1 where id = %s", [parent])
        assert sweep(other, base_s=0.0, cap_s=0.0) == {parent: ("crashed", "dead")}
    else:
        if end.startswith("replaced"):
            insert(other, "k", {"a": 1}, unique_key="u", on_conflict="replace")
        elif end.startswith("rescheduled"):
            other.execute("select supervisor.reschedule_job(%s)", [[parent]])
        other.execute("select supervisor.cancel_job(%s)", [[parent]])
    looked = look(looker)
    assert (looked.let_in, at_gate(db, child)) == (0, "parents")
    assert looked.next_s is not None, "it will look again, whoever tells"
    [busy] = reader.execute("select busy from supervisor.await_results('w', %s, 60)", [[parent]]).fetchall()
    assert busy == (True,), "who waits for its result asks again"
    other.commit()
    assert settled(db) == [child]


def test_nobody_waits_for_a_look_that_cancels_a_child(db: Database) -> None:
    worker = Holder(db)
    [parent] = enqueue(worker.conn)
    child = gated(worker.conn, after=[parent], failed="cancel")
    worker.settle(worker.claim(1).jobs, "dead", error="E")
    looker, reader = db.connect(autocommit=False), db.connect()
    reader.execute("set statement_timeout = '2s'")
    look(looker)
    [busy] = reader.execute("select busy from supervisor.await_results('w', %s, 60)", [[child]]).fetchall()
    assert busy == (True,)
    looker.commit()
    assert stored(db, child)["status"] == "cancelled"


def test_a_parents_ack_that_is_rolled_back_lets_no_child_go(db: Database) -> None:
    worker = Holder(db)
    [parent] = enqueue(worker.conn)
    jobs = worker.claim(1).jobs
    worker.conn.autocommit = False
    worker.ack(*jobs)
    child = gated(db.connect(), after=[parent])
    look(db.connect())
    worker.conn.rollback()
    assert settled(db) == []
    worker.conn.autocommit = True
    worker.ack(*jobs)
    assert settled(db) == [child]


def test_a_link_that_is_committed_after_its_parents_ack(db: Database) -> None:
    """The ack saw no link, and nobody will end again: the child's own note is enough."""
    worker = Holder(db)
    [parent] = enqueue(worker.conn)
    jobs = worker.claim(1).jobs
    producer = db.connect(autocommit=False)
    child = gated(producer, after=[parent])
    worker.ack(*jobs)
    assert settled(db) == []
    producer.commit()
    assert settled(db) == [child]


def test_two_parents_end_in_transactions_that_overlap(db: Database) -> None:
    one, two = Holder(db), Holder(db)
    parents = enqueue(one.conn, 2)
    child = gated(one.conn, after=parents)
    look(one.conn)
    first, second = one.claim(1).jobs, two.claim(1).jobs
    one.conn.autocommit = two.conn.autocommit = False
    one.ack(*first)
    two.ack(*second)
    one.conn.commit()
    look(db.connect())
    assert at_gate(db, child) == "parents"
    two.conn.commit()
    assert settled(db) == [child]


def test_a_retry_of_a_parent_that_is_not_committed_is_no_end_of_it(db: Database) -> None:
    """In the snapshot of whoever looks the parent is dead, or queued; never neither."""
    worker = Holder(db)
    [parent] = enqueue(worker.conn)
    child = gated(worker.conn, after=[parent])
    look(worker.conn)
    worker.settle(worker.claim(1).jobs, "dead", error="E")
    assert settled(db) == []
    operator = db.connect(autocommit=False)
    operator.execute("select supervisor.retry_job(%s)", [[parent]])
    db.execute("insert into supervisor.gate_note (gate, key) values (1, %s)", [str(child)])
    assert settled(db) == []
    operator.commit()
    assert settled(db) == []
    worker.ack(*worker.claim(1).jobs)
    assert settled(db) == [child]


# -- everything at once -------------------------------------------------------------------------


# At each claim: how many of its keys run then, itself among them.
AT_ONCE = """
create table at_once (of_order bigint, of_concurrency bigint);
create function note_at_once() returns trigger language plpgsql as $$ begin
    insert into at_once
    select count(*) filter (where g.ordering_key = own.ordering_key),
           count(*) filter (where g.concurrency_key = own.concurrency_key)
      from supervisor.gated own, supervisor.gated g join supervisor.job j on j.id = g.job_id
     where own.job_id = new.id and j.lease is not null;
    return null;
end $$;
create trigger note_at_once after update on supervisor.job for each row
  when (new.gated and new.lease is not null and old.lease is null) execute function note_at_once();
"""


@pytest.mark.pg("15", "18")
@pytest.mark.timeout(600 if FULL else 120)
def test_whatever_overlaps_nothing_is_stranded_and_nothing_exceeded(db: Database) -> None:
    """Producers, workers, gatekeepers and an operator from threads; keys of all kinds, few of each."""
    db.execute(AT_ONCE)
    jobs, producers, workers = (4000, 6, 6) if FULL else (400, 3, 4)
    faults: list[BaseException] = []
    stop, calm = threading.Event(), threading.Event()
    added: list[int] = []
    cancelled: set[int] = set()

    def produce(number: int, conn: Conn) -> None:
        rng = random.Random(number)
        conn.autocommit = False
        mine: list[int] = []
        for _ in range(jobs // producers):
            key = str(rng.randrange(3))
            job = gated(
                conn,
                order=key if rng.random() < 0.5 else None,
                concurrency=(key, 2) if rng.random() < 0.5 else None,
                rate=(key, 50, SECOND) if rng.random() < 0.2 else None,
                after=rng.sample(mine, min(len(mine), 2)) or [10**9],
                failed=rng.choice(["run", "cancel"]),
            )
            time.sleep(0.01 * rng.random() ** 3)
            if rng.random() < 0.2:
                conn.rollback()
                continue
            conn.commit()
            added.append(job)
            mine.append(job)

    def run(number: int, conn: Conn) -> None:
        rng = random.Random(100 + number)
        session = new_session_id()
        open_session(conn, session)
        conn.execute("set statement_timeout = '20s'")
        running: list[Held] = []
        while not stop.is_set():
            ends = [job for job in running if rng.random() < 0.6]
            running = [job for job in running if job not in ends]
            others = [job for job in ends if rng.random() < 0.2]
            if others:
                words = rng.choices(["failed", "snoozed", "released", "interrupted", "dead", "crashed"], k=len(others))
                settle(conn, session, others, words, error="E", delay_s=0.01, base_s=0.01, cap_s=0.01)
            running += work(
                conn, session, rng.randint(0, 4), acks=[job for job in ends if job not in others], lookback_s=5.0
            ).jobs
            time.sleep(0.001)

    def gatekeep(number: int, conn: Conn) -> None:
        while not stop.is_set():
            look(conn)
            time.sleep(0.002 * (1 + number))

    def operate(_: int, conn: Conn) -> None:
        rng = random.Random(0)
        while not calm.wait(0.02):
            if not added:
                continue
            some = rng.sample(added, min(3, len(added)))
            for row in conn.execute("select id from supervisor.cancel_job(%s)", [some]).fetchall():
                cancelled.add(row[0])
            if rng.random() < 0.5:
                conn.execute("select supervisor.retry_job(%s)", [some])
            conn.execute("select supervisor.reschedule_job(%s)", [rng.sample(added, 1)])

    def guarded(work: object, number: int, conn: Conn) -> None:
        try:
            work(number, conn)  # type: ignore[operator]
        except BaseException as error:
            faults.append(error)
            stop.set()

    parts = [(produce, producers), (run, workers), (gatekeep, 2), (operate, 1)]
    threads = [
        threading.Thread(target=guarded, args=(work, number, db.connect()))
        for work, count in parts
        for number in range(count)
    ]
    for thread in threads:
        thread.start()

    def looked() -> bool:
        if not any(thread.is_alive() for thread in threads[:producers]):
            calm.set()  # nothing is retried after that, so what is empty stays empty
        return bool(faults) or (
            not threads[-1].is_alive() and db.value("select not exists (select from supervisor.job)")
        )

    try:
        wait_until(looked, 500 if FULL else 90, "the queue is empty: nothing is stranded")
    finally:
        calm.set()
        stop.set()
        for thread in threads:
            thread.join(30)
    assert faults == []
    assert db.rows("select max(of_order), max(of_concurrency) from at_once") == [(1, 2)]
    ended = {
        row[0] for row in db.rows("select id from supervisor.history union all select id from supervisor.dead_letter")
    }
    assert ended == set(added)
    assert db.value("select count(*)::int from supervisor.gated where gate not in (8, 9) or gate is null") == 0
