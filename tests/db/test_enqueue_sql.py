"""The public SQL functions, called as any language calls them, and the wake-ups they send."""

import contextlib
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.support.database import Database
from tests.support.queue import Conn, Holder, enqueue, stored, sweep

COUNT = "select count(*)::int from supervisor.job"


@pytest.fixture
def conn(db: Database) -> Conn:
    return db.connect()


def call(conn: Conn, arguments: str) -> tuple[int, bool]:
    row = conn.execute(f"select id, created from supervisor.enqueue({arguments})".encode()).fetchone()
    assert row is not None
    return row[0], row[1]


def many(conn: Conn, jobs: list[dict[str, Any]]) -> list[tuple[int, bool]]:
    rows = conn.execute("select id, created from supervisor.enqueue_many(%s) order by ord", [json.dumps(jobs)])
    return [(row[0], row[1]) for row in rows.fetchall()]


# -- arguments ----------------------------------------------------------------------------------


@pytest.mark.pg("15", "16", "18")
def test_one_argument_is_enough_and_the_others_are_named(db: Database, conn: Conn) -> None:
    first, created = call(conn, "'k'")
    assert created
    job = stored(db, first)
    assert (job["queue"], job["priority"], job["payload"], job["headers"]) == ("default", 0, {}, {})
    assert (job["max_attempts"], job["max_crashes"], job["timeout"]) == (20, 3, None)
    second, _ = call(
        conn,
        """'k', '{"a": 1}', headers => '{"h": null}', queue => 'q', priority => -3, delay => '1 hour',
           max_attempts => 1, max_crashes => 1, timeout => '2 s', unique_key => 'u'""",
    )
    job = stored(db, second)
    assert (job["queue"], job["priority"], job["payload"], job["headers"]) == ("q", -3, {"a": 1}, {"h": None})
    assert (job["max_attempts"], job["max_crashes"], job["timeout"], job["unique_key"]) == (1, 1, "00:00:02", "u")
    assert db.value("select run_at - created_at from supervisor.job where id = %s", [second]).total_seconds() == 3600
    third, _ = call(conn, "'k', queue => null, priority => null, max_attempts => null, max_crashes => null")
    assert (stored(db, third)["queue"], stored(db, third)["max_attempts"]) == ("default", 20)


def test_a_time_in_the_past_means_now(db: Database, conn: Conn) -> None:
    for past in ("run_at => '2001-01-01+00'", "run_at => '-infinity'", "delay => '-1 day'", ""):
        job, _ = call(conn, f"'k', {past}".rstrip(", "))
        assert db.value("select run_at = created_at from supervisor.job where id = %s", [job])
    later, _ = call(conn, "'k', run_at => '2100-01-01+00'")
    assert stored(db, later)["run_at"].startswith("2100-01-01")


REFUSED = [
    ({"run_at": "2100-01-01+00", "delay": 5}, "give run_at or delay, not both"),
    ({"on_conflict": "ignore"}, "on_conflict is 'ignore', must be skip, replace or raise"),
    ({"payload": [1]}, "payload must be a JSON object, not array"),
    ({"payload": None}, "payload must be a JSON object, not null"),
    ({"headers": 7}, "headers must be a JSON object, not number"),
    ({"run_at": "infinity"}, "run_at must be finite"),
    ({"kind": None}, "kind must be 1 to 128 bytes long, not null"),
    ({"kind": ""}, "kind must be 1 to 128 bytes long, not 0"),
    ({"kind": "é" * 65}, "kind must be 1 to 128 bytes long, not 130"),
    ({"queue": ""}, "queue must be 1 to 128 bytes long, not 0"),
    ({"queue": "q" * 129}, "queue must be 1 to 128 bytes long, not 129"),
    ({"unique_key": ""}, "unique_key must be 1 to 1024 bytes long, not 0"),
    ({"unique_key": "u" * 1025}, "unique_key must be 1 to 1024 bytes long, not 1025"),
    ({"priority": 101}, "priority is 101, must be -100 to 100"),
    ({"priority": 70000}, "priority is 70000, must be -100 to 100"),
    ({"max_attempts": 0}, "max_attempts is 0, must be at least 1"),
    ({"max_crashes": 0}, "max_crashes is 0, must be at least 1"),
    ({"timeout": 0}, "timeout must be above 0"),
    ({"timeout": -1}, "timeout must be above 0"),
]


@pytest.mark.parametrize(("bad", "text"), REFUSED, ids=[text for _, text in REFUSED])
def test_what_is_wrong_with_a_job_is_said_in_words_that_quote_no_payload(
    db: Database, conn: Conn, bad: dict[str, Any], text: str
) -> None:
    """B20: single and bulk refuse the same, with the field named; the caller's savepoint survives."""
    job = {"kind": "k", "payload": {"secret": "s3cret"}, **bad}
    casts = {
        "payload": "jsonb",
        "headers": "jsonb",
        "delay": "interval",
        "timeout": "interval",
        "run_at": "timestamptz",
    }
    named = ", ".join(f"{name} => %({name})s::{casts.get(name, 'text')}" for name in job)
    named = named.replace("::text", "") if "priority" in job or "max_attempts" in job or "max_crashes" in job else named
    params = {
        name: json.dumps(value)
        if name in ("payload", "headers")
        else f"{value} s"
        if name in ("delay", "timeout")
        else value
        for name, value in job.items()
    }
    with conn.transaction():
        with pytest.raises(psycopg.errors.InvalidParameterValue) as single, conn.transaction():
            conn.execute(f"select supervisor.enqueue({named})".encode(), params)
        with pytest.raises(psycopg.errors.InvalidParameterValue) as bulk, conn.transaction():
            many(conn, [{"kind": "k"}, job])
        kept = call(conn, "'k'")[0]
    assert single.value.diag.message_primary == text
    assert bulk.value.diag.message_primary == f"job 2: {text}"
    for error in (single, bulk):
        assert "s3cret" not in str(error.value)
    assert db.rows("select id from supervisor.job") == [(kept,)]


def test_a_bulk_that_is_no_array_of_objects_is_refused(conn: Conn) -> None:
    for text, message in (("{}", "jobs must be a JSON array"), ("[{}, 3]", "job 2 must be a JSON object, not number")):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=message):
            conn.execute("select supervisor.enqueue_many(%s)", [text])
    assert many(conn, []) == []


@pytest.mark.parametrize(
    "payload",
    [
        {}, {"n": 2**63}, {"f": 1.5e-7}, {"t": "😀" * 2000}, {"big": "x" * 10_000_000}, {"q": "'\"\\;--$$"},
        {"": {"": []}},
        json.loads('{"a":' * 100 + "1" + "}" * 100),
    ],
    ids=["empty", "2^63", "float", "four-byte text", "10 MB", "quotes", "empty keys", "100 deep"],
)  # fmt: skip
def test_what_is_stored_is_claimed_equal(db: Database, conn: Conn, payload: dict[str, Any]) -> None:
    """B20, B26: whatever JSON can say, with a supervisor waiting to be told."""
    db.execute("insert into supervisor.waiting values (1)")
    [one] = enqueue(conn, payload=json.dumps(payload))
    [(two, _)] = many(conn, [{"kind": "k", "payload": payload}])
    claim = Holder(db).claim(2)
    assert [(job.id, json.loads(job.payload)) for job in claim.jobs] == [(one, payload), (two, payload)]


# -- unique keys --------------------------------------------------------------------------------


def test_skip_keeps_the_job_that_has_the_key_queued_or_running(db: Database, conn: Conn) -> None:
    first = call(conn, "'old', unique_key => 'u'")
    assert call(conn, "'new', unique_key => 'u'") == (first[0], False)
    holder = Holder(db)
    [held] = holder.claim().jobs
    assert call(conn, "'new', unique_key => 'u', on_conflict => 'replace'") == (first[0], False)
    assert stored(db, first[0])["kind"] == "old"
    holder.ack(held)
    assert call(conn, "'new', unique_key => 'u'")[1] is True


def test_replace_makes_another_job_of_a_queued_one(db: Database, conn: Conn) -> None:
    """It is charged for nothing that the one before did: a crash count that stayed would bury it early."""
    first, _ = call(conn, """'old', '{"v": 1}', unique_key => 'u', timeout => '1 s'""")
    db.execute("update supervisor.job set attempts = 7, crashes = 2, priority = priority + 1000, unknown_since = now()")
    again = call(
        conn,
        """'new', '{"v": 2}', unique_key => 'u', on_conflict => 'replace', queue => 'q', priority => 5, delay => '1 h',
           headers => '{"h": 1}'""",
    )
    assert again == (first, False)
    job = stored(db, first)
    assert (job["kind"], job["payload"], job["queue"], job["priority"], job["timeout"], job["headers"]) == (
        "new", {"v": 2}, "q", 5, None, {"h": 1}
    )  # fmt: skip
    assert (job["attempts"], job["crashes"], job["suspect"]) == (0, 0, False)
    assert db.value("select unknown_since is null and run_at > now() + interval '59 min' from supervisor.job")


def test_raise_names_the_job_that_has_the_key(conn: Conn) -> None:
    first, _ = call(conn, "'k', unique_key => 'u', on_conflict => 'raise'")
    with pytest.raises(psycopg.errors.UniqueViolation) as error:
        call(conn, "'k', unique_key => 'u', on_conflict => 'raise'")
    assert error.value.diag.message_detail == f"job {first} holds it"
    with pytest.raises(psycopg.errors.UniqueViolation):
        many(conn, [{"kind": "k"}, {"kind": "k", "unique_key": "u", "on_conflict": "raise"}])


@pytest.mark.pg("15", "16", "18")
@pytest.mark.parametrize("on_conflict", ["skip", "replace"])
def test_a_bulk_makes_what_its_single_calls_would_make(db: Database, conn: Conn, on_conflict: str) -> None:
    """B35, with keys repeated in the bulk, taken by queued and running jobs, and different options."""
    running = call(conn, "'old', unique_key => 'k-running'")[0]
    assert Holder(db).claim(1).ids == [running]
    call(conn, "'old', unique_key => 'k-queued'")
    jobs: list[dict[str, Any]] = [
        {"kind": "a", "payload": {"n": 0}, "queue": "q", "priority": 3, "max_attempts": 2, "max_crashes": 4,
         "timeout": 1.5},
        {"kind": "b", "unique_key": "k-running", "payload": {"n": 1}},
        {"kind": "c", "unique_key": "z", "payload": {"n": 2}, "delay": 3600},
        {"kind": "d", "unique_key": "a", "payload": {"n": 3}, "headers": {"x": 1}},
        {"kind": "e", "unique_key": "z", "payload": {"n": 4}, "priority": 9},
        {"kind": "f", "unique_key": "k-queued", "payload": {"n": 5}, "run_at": "2100-01-01T00:00:00+00:00"},
        {"kind": "g", "unique_key": "z", "payload": {"n": 6}},
    ]  # fmt: skip
    for job in jobs:
        job["on_conflict"] = on_conflict
    question = (
        "select unique_key, kind, payload, queue, priority, max_attempts, max_crashes, timeout, headers, lease is null,"
        " run_at > now() + interval '1 min' from supervisor.job order by unique_key, kind"
    )
    with conn.transaction(force_rollback=True):
        singles = []
        for job in jobs:
            named = {**job, "payload": json.dumps(job["payload"]), "headers": json.dumps(job.get("headers", {}))}
            for seconds in ("delay", "timeout"):
                if seconds in named:
                    named[seconds] = f"{named[seconds]} s"
            arguments = ", ".join(f"{name} => %({name})s" for name in named)
            row = conn.execute(f"select id, created from supervisor.enqueue({arguments})".encode(), named).fetchone()
            assert row is not None
            singles.append((row[0], row[1]))
        by_singles = conn.execute(question.encode()).fetchall()
    bulk = many(conn, jobs)
    assert conn.execute(question.encode()).fetchall() == by_singles
    assert [created for _, created in bulk] == [created for _, created in singles]
    for one in range(len(jobs)):
        for other in range(one):
            assert (bulk[one][0] == bulk[other][0]) is (singles[one][0] == singles[other][0])


def test_ids_of_a_bulk_without_keys_rise_with_the_position(conn: Conn) -> None:
    jobs = [{"kind": "k", "unique_key": f"u{97 * n % 50}" if n % 3 == 0 else None} for n in range(50)]
    answers = many(conn, jobs)
    assert all(created for _, created in answers)
    ids = [answers[n][0] for n in range(50) if n % 3]
    assert ids == sorted(ids)


def test_a_cancel_of_many_and_a_bulk_that_replaces_them_cannot_deadlock(db: Database, conn: Conn) -> None:
    """Ids rise as keys fall here: taken in the order of ids, the two would meet half-way."""
    later, first = enqueue(conn, unique_key="z")[0], enqueue(conn, unique_key="a")[0]
    gate = db.connect(autocommit=False)
    gate.execute("select from supervisor.job where id = %s for update", [first])
    other = db.connect()
    bulk = [{"kind": "new", "unique_key": key, "on_conflict": "replace"} for key in ("a", "z")]
    blocked = "select wait_event_type from pg_stat_activity where pid = %s"
    with ThreadPoolExecutor(2) as pool:
        replacing = pool.submit(many, conn, bulk)
        db.wait_for(blocked, "Lock", params=[conn.info.backend_pid])
        cancelling = pool.submit(
            lambda: other.execute("select * from supervisor.cancel_job(%s)", [[later, first]]).fetchall()
        )
        db.wait_for(blocked, "Lock", params=[other.info.backend_pid])
        gate.rollback()
        assert replacing.result(30) == [(first, False), (later, False)]
        assert cancelling.result(30) == [(first, "cancelled"), (later, "cancelled")]


@pytest.mark.pg("15", "16", "18")
def test_bulks_with_keys_in_common_workers_and_operators_never_deadlock(db: Database) -> None:
    """Keys are taken in the order of keys, one by one; what runs, in the order of ids.

    A bulk that first inserted what it could and then looked at the rest deadlocked with its like.
    """
    stop = threading.Event()

    def produce(number: int) -> None:
        rng, conn = random.Random(number), db.connect()
        for _ in range(40):
            keys = [f"key-{rng.randrange(30)}" for _ in range(20)]
            many(
                conn, [{"kind": "k", "unique_key": key, "on_conflict": rng.choice(["skip", "replace"])} for key in keys]
            )

    def consume() -> None:
        rng, holder = random.Random(9), Holder(db)
        while not stop.is_set():
            jobs = holder.claim(8).jobs
            holder.ack(*jobs[:4])
            holder.settle(jobs[4:], rng.choice(["released", "dead"]))

    def operate() -> None:
        conn = db.connect()
        while not stop.is_set():
            conn.execute("select * from supervisor.cancel_job(array(select id from supervisor.job limit 1))")
            # A key that is held again by now is refused, as it should be; a deadlock is not.
            with contextlib.suppress(psycopg.errors.UniqueViolation):
                conn.execute("select supervisor.retry_job(array(select id from supervisor.dead_letter limit 3))")
            sweep(conn, front="2026-01-01 00:00:00.000001+00")

    with ThreadPoolExecutor(5) as pool:
        others = [pool.submit(consume), pool.submit(operate)]
        try:
            for producer in [pool.submit(produce, number) for number in range(3)]:
                producer.result(60)
        finally:
            stop.set()
        for other in others:
            other.result(30)
    assert db.value("select count(distinct unique_key) = count(*) from supervisor.job") is True


# -- wake-ups -----------------------------------------------------------------------------------


class Ear:
    """A listening connection; `heard` is all that was sent by what has committed."""

    def __init__(self, db: Database, waiting: bool = True) -> None:
        self.db = db
        if waiting:
            db.execute("insert into supervisor.waiting values (1)")
        self.conn = db.connect()
        self.conn.execute("listen supervisor")

    def heard(self) -> list[dict[str, Any]]:
        """Everything before a notification of our own: they are delivered in order of commit."""
        self.db.execute("select pg_notify('supervisor', 'over')")
        found: list[dict[str, Any]] = []
        for notice in self.conn.notifies(timeout=30):
            if notice.payload == "over":
                return found
            assert len(notice.payload.encode()) < 8000
            found.append(json.loads(notice.payload))
        pytest.fail("its own notification did not arrive")


def test_a_statement_tells_each_queue_once(db: Database, conn: Conn) -> None:
    ear = Ear(db)
    conn.execute(
        b"insert into supervisor.job (kind, queue, priority, run_at)"
        b" select 'k', 'q' || n % 3, n % 2, now() + n * interval '1 s' from generate_series(1, 900) n"
    )
    notices = ear.heard()
    assert sorted(notice["queue"] for notice in notices) == ["q0", "q1", "q2"]
    assert all(notice["priorities"] == [0, 1] for notice in notices)
    first = {row[0]: float(row[1]) for row in db.rows(
        "select queue, extract(epoch from min(run_at)) from supervisor.job group by 1")}  # fmt: skip
    assert {notice["queue"]: notice["at"] for notice in notices} == first


@pytest.mark.pg("15", "16", "18")
@pytest.mark.parametrize("keys", ["none", "new", "taken"])
def test_a_bulk_of_thousands_tells_each_queue_once(db: Database, conn: Conn, keys: str) -> None:
    """B23, B26: 5,000 jobs in 500 queues with 60-byte names. Each unique_key sent one of its own once."""
    key = None if keys == "none" else "u"
    jobs = [
        {"kind": "k", "queue": f"{n % 500:060}", "unique_key": key and f"{key}{n}", "on_conflict": "replace"}
        for n in range(5000)
    ]
    if keys == "taken":
        many(conn, jobs)
    ear = Ear(db)
    with conn.transaction():
        assert len(many(conn, jobs)) == 5000
    notices = ear.heard()
    assert sorted(notice["queue"] for notice in notices) == sorted(f"{n:060}" for n in range(500))
    assert db.value(COUNT) == 5000


def test_nobody_is_told_when_nobody_waits(db: Database, conn: Conn) -> None:
    ear = Ear(db, waiting=False)
    call(conn, "'k'")
    many(conn, [{"kind": "k"}, {"kind": "k", "unique_key": "u"}])
    call(conn, "'k', unique_key => 'u', on_conflict => 'replace'")
    holder = Holder(db)
    holder.settle(holder.claim(5).jobs, "released")
    assert ear.heard() == []


def test_what_was_rolled_back_is_not_told(db: Database, conn: Conn) -> None:
    ear = Ear(db)
    with conn.transaction():
        with conn.transaction(force_rollback=True):
            call(conn, "'k', queue => 'gone'")
        call(conn, "'k', queue => 'stays'")
    assert [notice["queue"] for notice in ear.heard()] == ["stays"]


def test_a_conflict_that_changed_nothing_tells_nobody_and_a_replacement_does(db: Database, conn: Conn) -> None:
    call(conn, "'k', unique_key => 'u'")
    ear = Ear(db)
    call(conn, "'k', unique_key => 'u'")
    many(conn, [{"kind": "k", "unique_key": "u"}])
    assert ear.heard() == []
    call(conn, "'k', unique_key => 'u', on_conflict => 'replace', queue => 'q', priority => 7, delay => '1 min'")
    [notice] = ear.heard()
    assert (notice["queue"], notice["priorities"]) == ("q", [7])
    assert notice["at"] == float(db.value("select extract(epoch from run_at) from supervisor.job"))


def test_more_priorities_than_fit_are_left_out_and_odd_names_do_fit(db: Database, conn: Conn) -> None:
    ear = Ear(db)
    odd = '\x01"\\\n' * 32
    conn.execute(
        "insert into supervisor.job (kind, queue, priority) select 'k', %s, n - 100 from generate_series(0, 200) n",
        [odd],
    )
    [notice] = ear.heard()
    assert (notice["queue"], notice["priorities"]) == (odd, None)


def test_released_jobs_tell_from_where_to_look(db: Database, conn: Conn) -> None:
    ids = [call(conn, f"'k', queue => '{queue}'")[0] for queue in ("default", "default", "other")]
    holder = Holder(db)
    jobs = holder.claim(2).jobs
    ear = Ear(db)
    holder.settle(jobs, "released")
    [notice] = ear.heard()
    assert notice["queue"] == "default"
    assert notice["at"] == float(
        db.value("select extract(epoch from run_at) from supervisor.job where id = %s", [ids[0]])
    )
    # Those that are due later are the worker's own to tell.
    holder.settle(holder.claim(2).jobs, "failed", delay_s=60)
    assert ear.heard() == []


def test_a_running_job_that_is_cancelled_is_told_of_even_when_nobody_waits(db: Database, conn: Conn) -> None:
    ear = Ear(db, waiting=False)
    [job, queued] = enqueue(conn, 2)
    holder = Holder(db)
    [held] = holder.claim(1).jobs
    what: dict[int, str] = dict(db.rows("select * from supervisor.cancel_job(%s)", [[job, queued]]))
    assert what == {job: "asked", queued: "cancelled"}
    assert ear.heard() == [{"cancel": job, "session": holder.session, "claims": held.token}]
