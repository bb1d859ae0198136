"""Unique keys that are taken for a time and in chosen states, by index: unique_for, unique_states."""

import json
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from supervisor import Enqueued, NewJob, enqueue, enqueue_batch, enqueue_many
from supervisor.errors import UniqueConflict
from tests.support.database import Database
from tests.support.queue import Conn, Holder, stored

JOBS = "select count(*)::int from supervisor.job"
HOLDS = "select unique_key, job_id, states from supervisor.unique_hold order by 1"
HOUR: dict[str, Any] = {"unique_key": "k", "unique_for": 3600}


@pytest.fixture
def conn(db: Database) -> Conn:
    return db.connect()


def hour_passes(db: Database) -> None:
    db.execute("update supervisor.unique_hold set until = until - interval '1 hour 1 second'")


def end(db: Database, job_id: int, state: str) -> None:
    """Bring a queued job to *state* as the service does."""
    if state == "queued":
        return
    if state == "cancelled":
        db.execute("select supervisor.cancel_job(array[%s]::bigint[])", [job_id])
        return
    holder = Holder(db)
    [held] = holder.claim(1).jobs
    assert held.id == job_id
    if state == "done":
        holder.ack(held)
    elif state == "dead":
        holder.settle([held], "dead")


# -- for how long ------------------------------------------------------------------------------


@pytest.mark.pg("15", "16", "18")
def test_a_key_is_taken_for_its_time_whether_the_job_is_done_or_not(db: Database, conn: Conn) -> None:
    first = enqueue(conn, "a", **HOUR)
    for state in ("queued", "running"):
        assert enqueue(conn, "b", unique_key="k") == (first.id, False)
        if state == "queued":
            holder = Holder(db)
            [held] = holder.claim(1).jobs
    holder.ack(held)
    assert enqueue(conn, "b", **HOUR) == (first.id, False)
    assert enqueue(conn, "b", unique_key="k") == (first.id, False), "a plain key minds what another one holds"
    assert enqueue_many(conn, [NewJob("b", unique_key="k")]) == [(first.id, False)]
    hour_passes(db)
    second = enqueue(conn, "b", **HOUR)
    assert second.created
    assert db.rows(HOLDS) == [("k", second.id, ["queued", "running", "done"])]


def test_a_queued_job_has_its_key_after_its_time_too(db: Database, conn: Conn) -> None:
    first = enqueue(conn, "a", in_=86_400, **HOUR)
    hour_passes(db)
    assert enqueue(conn, "b", **HOUR) == (first.id, False)


ALL = ("queued", "running", "done", "dead", "cancelled")


@pytest.mark.parametrize("state", ALL)
@pytest.mark.parametrize(
    "states",
    [("queued",), ("running",), ("queued", "running"), ("done",), ("queued", "running", "dead"), ("cancelled",), ALL],
    ids="+".join,
)
def test_a_key_is_taken_in_its_states_and_no_other(
    db: Database, conn: Conn, states: tuple[Any, ...], state: str
) -> None:
    """By the first call that comes: single or bulk, with the same options or others."""
    lasting: dict[str, Any] = {} if set(states) <= {"queued", "running"} else {"unique_for": 60}
    first = enqueue(conn, "a", unique_key="k", unique_states=states, **lasting)
    end(db, first.id, state)
    calls: list[Any] = [
        lambda: enqueue(conn, "b", unique_key="k", unique_states=states, **lasting),
        lambda: enqueue(conn, "b", unique_key="k"),
        lambda: enqueue_many(conn, [NewJob("b", unique_key="k", unique_states=["queued"])])[0],
        lambda: enqueue_batch(conn, [], NewJob("b", unique_key="k")).then,
    ]
    for call in calls:
        with conn.transaction(force_rollback=True):
            answer = call()
            assert answer.created is (state not in states)
            assert (answer.id == first.id) is (state in states)
        with (
            conn.transaction(force_rollback=True),
            pytest.raises(UniqueConflict) if state in states else conn.transaction(),
        ):
            enqueue(conn, "b", unique_key="k", on_conflict="raise")


def test_sql_says_who_holds_a_key_and_in_which_state(db: Database, conn: Conn) -> None:
    first = enqueue(conn, "a", **HOUR)
    end(db, first.id, "done")
    with pytest.raises(psycopg.errors.UniqueViolation, match="is done, and it is taken for some time") as error:
        conn.execute("select supervisor.enqueue('b', unique_key => 'k', on_conflict => 'raise')")
    assert error.value.diag.message_detail == f"job {first.id} holds it"


def test_a_job_of_queued_only_leaves_room_for_another_while_it_runs(db: Database, conn: Conn) -> None:
    """What changes while it runs must not be lost: "index this document again"."""
    options: dict[str, Any] = {"unique_key": "doc", "unique_states": ["queued"]}
    first = enqueue(conn, "a", **options)
    assert enqueue(conn, "a", **options) == (first.id, False)
    holder = Holder(db)
    [held] = holder.claim(1).jobs
    second = enqueue(conn, "a", **options)
    assert second.created
    assert enqueue(conn, "a", **options) == (second.id, False)
    holder.ack(held)
    assert enqueue(conn, "a", **options) == (second.id, False)
    assert Holder(db).claim(9).ids == [second.id]


def test_a_retried_job_is_what_holds_its_key_again(db: Database, conn: Conn) -> None:
    first = enqueue(conn, "a", **HOUR)
    end(db, first.id, "dead")
    second = enqueue(conn, "b", **HOUR)
    assert second.created
    with pytest.raises(psycopg.errors.UniqueViolation):
        conn.execute("select supervisor.retry_job(%s)", [[first.id]])
    end(db, second.id, "cancelled")
    conn.execute("select supervisor.retry_job(%s)", [[first.id]])
    assert enqueue(conn, "b", unique_key="k") == (first.id, False)


# -- replace -----------------------------------------------------------------------------------


@pytest.mark.parametrize("states", [None, ["queued"]])
def test_the_newest_payload_and_time_win_while_queued(db: Database, conn: Conn, states: Any) -> None:
    """A debounce: each call puts it off."""
    options: dict[str, Any] = {"unique_key": "k", "unique_states": states, "on_conflict": "replace"}
    first = enqueue(conn, "a", {"n": 1}, in_=60, **options)
    before = stored(db, first.id)["run_at"]
    assert enqueue(conn, "b", {"n": 2}, in_=120, **options) == (first.id, False)
    after = stored(db, first.id)
    assert (after["kind"], after["payload"]) == ("b", {"n": 2})
    assert after["run_at"] > before
    assert enqueue_many(conn, [NewJob("c", {"n": 3}, unique_key="k", unique_states=states)], on_conflict="replace") == [
        (first.id, False)
    ]
    assert stored(db, first.id)["payload"] == {"n": 3}
    assert db.value(JOBS) == 1


def test_what_runs_or_has_ended_is_kept(db: Database, conn: Conn) -> None:
    first = enqueue(conn, "a", **HOUR)
    holder = Holder(db)
    [held] = holder.claim(1).jobs
    assert enqueue(conn, "b", on_conflict="replace", **HOUR) == (first.id, False)
    assert stored(db, first.id)["kind"] == "a"
    holder.ack(held)
    assert enqueue(conn, "b", on_conflict="replace", **HOUR) == (first.id, False)
    assert db.value(JOBS) == 0


def test_a_replacement_takes_its_own_time_and_states(db: Database, conn: Conn) -> None:
    first = enqueue(conn, "a", **HOUR)
    until = db.value("select until from supervisor.unique_hold")
    enqueue(
        conn, "a", unique_key="k", unique_for=7200, unique_states=["queued", "running", "dead"], on_conflict="replace"
    )
    assert db.rows(HOLDS) == [("k", first.id, ["queued", "running", "dead"])]
    assert db.value("select until from supervisor.unique_hold") > until
    enqueue(conn, "a", unique_key="k", unique_states=["queued"], on_conflict="replace")
    assert stored(db, first.id)["unique_key"] is None
    assert db.rows(HOLDS) == [("k", first.id, ["queued"])]
    assert enqueue(conn, "a", unique_key="k", on_conflict="replace") == (first.id, False)
    assert stored(db, first.id)["unique_key"] == "k"
    assert db.rows(HOLDS) == []


# -- other transactions ------------------------------------------------------------------------

WAYS: dict[str, dict[str, Any]] = {
    "for": {"unique_for": 3600},
    "queued": {"unique_states": ["queued"]},
    "plain": {},
}


@pytest.mark.pg("15", "16", "18")
@pytest.mark.parametrize("other_commits", [True, False])
@pytest.mark.parametrize("of_b", WAYS)
@pytest.mark.parametrize("of_a", ["for", "queued"])
def test_a_key_waits_for_the_transaction_that_has_it(db: Database, of_a: str, of_b: str, other_commits: bool) -> None:
    """B34, whatever the two ask for: never "exists already" of a job that is then rolled back."""
    a, b = db.connect(autocommit=False), db.connect()
    first = enqueue(a, "a", unique_key="k", **WAYS[of_a])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: enqueue(b, "b", unique_key="k", **WAYS[of_b]))
        db.wait_for("select wait_event_type from pg_stat_activity where pid = %s", "Lock", params=[b.info.backend_pid])
        (a.commit if other_commits else a.rollback)()
        second = waiting.result(10)
    assert second.created is not other_commits
    assert (second.id == first.id) is other_commits
    assert db.rows("select id from supervisor.job") == [(second.id,)]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("of_b", WAYS)
def test_an_old_snapshot_does_not_see_past_a_key(db: Database, of_b: str, level: str) -> None:
    """It fails, as a serialization failure, rather than add a second job."""
    b = db.connect(autocommit=False)
    b.execute(f"set transaction isolation level {level}".encode())
    b.execute("select 1 from supervisor.job")
    first = enqueue(db.connect(), "a", **HOUR)
    end(db, first.id, "done")
    with pytest.raises(psycopg.errors.SerializationFailure):
        enqueue(b, "b", unique_key="k", **WAYS[of_b])


@pytest.mark.parametrize("way", ["for", "queued"])
def test_many_clients_leave_one_job_for_each_key_that_was_committed(db: Database, way: str) -> None:
    """B34 with unique_for and unique_states: 20 clients, 200 keys, half of the transactions roll back."""
    committed: list[tuple[str, Enqueued]] = []
    lock = threading.Lock()

    def client(number: int) -> None:
        rng = random.Random(number)
        with psycopg.connect(db.conninfo) as conn:
            for _ in range(60):
                key = f"key-{rng.randrange(200)}"
                if rng.random() < 0.5:
                    answer = enqueue(conn, "x", unique_key=key, **WAYS[way])
                else:
                    [answer] = enqueue_many(conn, [NewJob("x", unique_key=key, **WAYS[way])])
                if rng.random() < 0.5:
                    conn.rollback()
                else:
                    conn.commit()
                    with lock:
                        committed.append((key, answer))

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(client, range(20)))
    jobs: dict[str, int] = dict(db.rows("select unique_key, job_id from supervisor.unique_hold"))
    assert set(jobs) == {key for key, _ in committed}
    assert all(jobs[key] == answer.id for key, answer in committed)
    assert set(Counter(key for key, answer in committed if answer.created).values()) == {1}
    assert db.value(JOBS) == len(jobs)


def test_bulks_of_all_ways_with_keys_in_common_never_deadlock(db: Database) -> None:
    stop = threading.Event()

    def produce(number: int) -> None:
        rng, conn = random.Random(number), db.connect()
        for _ in range(25):
            jobs = [NewJob("x", unique_key=f"key-{rng.randrange(20)}", **WAYS[rng.choice([*WAYS])]) for _ in range(12)]
            enqueue_many(conn, jobs, on_conflict=rng.choice(["skip", "replace"]))

    def consume() -> None:
        rng, holder = random.Random(9), Holder(db)
        while not stop.is_set():
            jobs = holder.claim(8).jobs
            holder.ack(*jobs[:4])
            holder.settle(jobs[4:], rng.choice(["released", "dead"]))

    with ThreadPoolExecutor(4) as pool:
        consumer = pool.submit(consume)
        try:
            for producer in [pool.submit(produce, number) for number in range(3)]:
                producer.result(60)
        finally:
            stop.set()
        consumer.result(30)
    assert (
        db.value("select count(*)::int from pg_stat_database where datname = current_database() and deadlocks > 0") == 0
    )


@pytest.mark.parametrize(("order", "row"), [("cancel_job", "cancelled"), ("reschedule_job", None)])
@pytest.mark.parametrize("way", ["for", "queued"])
def test_an_order_for_many_and_a_bulk_that_replaces_them_cannot_deadlock(
    db: Database, conn: Conn, way: str, order: str, row: str | None
) -> None:
    """Ids rise as keys fall here: taken in the order of ids, the two would meet half-way."""
    later, first = (enqueue(conn, "a", unique_key=key, **WAYS[way]).id for key in ("z", "a"))
    gate = db.connect(autocommit=False)
    gate.execute("select from supervisor.job where id = %s for update", [first])
    other = db.connect()
    bulk = [NewJob("new", unique_key=key, **WAYS[way]) for key in ("a", "z")]
    blocked = "select wait_event_type from pg_stat_activity where pid = %s"
    with ThreadPoolExecutor(2) as pool:
        replacing = pool.submit(lambda: enqueue_many(conn, bulk, on_conflict="replace"))
        db.wait_for(blocked, "Lock", params=[conn.info.backend_pid])
        ordering = pool.submit(
            lambda: other.execute(f"select * from supervisor.{order}(%s)".encode(), [[later, first]]).fetchall()
        )
        db.wait_for(blocked, "Lock", params=[other.info.backend_pid])
        gate.rollback()
        assert replacing.result(30) == [(first, False), (later, False)]
        answers = ordering.result(30)
    assert [answer[0] for answer in answers] == [first, later]
    assert row is None or {answer[1] for answer in answers} == {row}


@pytest.mark.parametrize("on_conflict", ["skip", "replace"])
def test_a_bulk_makes_the_jobs_that_single_calls_would(db: Database, on_conflict: Any) -> None:
    """B35: 400 jobs that repeat keys of the bulk and meet keys of jobs in every state, of every way."""
    conn, rng = db.connect(autocommit=False), random.Random(35)
    for way, options in WAYS.items():
        for state in ALL:
            if state != "queued":  # those below claim what is queued
                old = [enqueue(conn, "old", unique_key=f"{way}-{state}-{n}", **options).id for n in range(3)]
                conn.commit()
                if state == "cancelled":
                    conn.execute("select supervisor.cancel_job(%s)", [old])
                else:
                    holder = Holder(db)
                    jobs = holder.claim(3).jobs
                    if state == "done":
                        holder.ack(*jobs)
                    elif state == "dead":
                        holder.settle(jobs, "dead")
                conn.commit()
    for way, options in WAYS.items():
        enqueue_many(conn, [NewJob("old", unique_key=f"{way}-queued-{n}", **options) for n in range(3)])
    conn.commit()
    keys = [f"{way}-{state}-{n}" for way in (*WAYS, "new") for state in ALL for n in range(4)]
    bulk: list[NewJob] = []
    for n in range(400):
        key = rng.choice(keys) if n % 10 else None
        bulk.append(NewJob("new", {"n": n}, unique_key=key, **(WAYS[rng.choice([*WAYS])] if key else {})))
    question = (
        b"select coalesce(j.unique_key, h.unique_key), j.kind, j.payload ->> 'n', j.lease, h.states"
        b" from supervisor.job j left join supervisor.unique_hold h on h.job_id = j.id order by 1, 2, 3"
    )
    singles = [
        enqueue(
            conn, job.kind, json.loads(job.payload_json), unique_key=job.unique_key, unique_for=job.unique_for,
            unique_states=job.unique_states, on_conflict=on_conflict,
        )
        for job in bulk
    ]  # fmt: skip
    by_singles = conn.execute(question).fetchall()
    conn.rollback()
    many = enqueue_many(conn, bulk, on_conflict=on_conflict)
    assert conn.execute(question).fetchall() == by_singles
    assert [answer.created for answer in many] == [answer.created for answer in singles]
    assert 100 < sum(answer.created for answer in many) < 300


# -- forgetting --------------------------------------------------------------------------------


def test_what_no_key_is_taken_by_any_more_is_pruned_and_what_is_stays(db: Database, conn: Conn) -> None:
    done = enqueue(conn, "a", unique_key="over", unique_for=3600)
    end(db, done.id, "done")
    waits = enqueue(conn, "a", unique_key="own row", unique_for=3600)
    queued = enqueue(conn, "a", unique_key="queued only", unique_for=3600, unique_states=["queued", "done"])
    hour_passes(db)
    young = enqueue(conn, "a", unique_key="young", unique_for=3600)
    db.execute("select supervisor.prune('7 days', '30 days', 2)")
    db.execute("select supervisor.prune('7 days', '30 days', 2)")
    assert db.rows(HOLDS) == [
        ("queued only", queued.id, ["queued"]),
        ("young", young.id, ["queued", "running", "done"]),
    ]
    assert enqueue(conn, "b", unique_key="own row") == (waits.id, False)
    assert enqueue(conn, "b", unique_key="queued only") == (queued.id, False)
    db.execute("delete from supervisor.job")
    db.execute("update supervisor.unique_hold set until = now() - interval '1 s'")
    db.execute("select supervisor.prune('7 days', '30 days', 10)")
    assert db.rows(HOLDS) == []
