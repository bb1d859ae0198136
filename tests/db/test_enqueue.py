"""Enqueueing on a real server: with the caller's transaction, exactly when it commits, once per unique key."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import pq
from psycopg.rows import dict_row

from supervisor import Enqueued, NewJob, enqueue, enqueue_many, handler
from supervisor.errors import InvalidJob, SchemaMissing, UniqueConflict
from supervisor.handler import Handler
from tests.support.database import Database
from tests.support.sizes import FULL

ROOT = Path(__file__).parents[2]
JOBS = "select count(*)::int from supervisor.job"


class Mine(RuntimeError):
    """The caller's own trouble."""


@pytest.fixture
def mail() -> Handler[Any]:
    def send(user_id: int, lang: str = "en") -> None: ...

    return handler("mail", queue="email", priority=2, max_attempts=7, max_crashes=2)(send)


@pytest.fixture
def business(db: Database) -> Database:
    db.execute("create table business (id int primary key)")
    return db


def stored(db: Database, job_id: int) -> dict[str, Any]:
    [row] = db.rows("select to_jsonb(j) from supervisor.job j where id = %s", [job_id])
    found: dict[str, Any] = row[0]
    return found


def status(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> pq.TransactionStatus:
    return conn.info.transaction_status


# -- the caller's transaction ------------------------------------------------------------------


def test_a_job_exists_exactly_when_its_transaction_committed(business: Database, mail: Handler[Any]) -> None:
    conn = business.connect(autocommit=False)
    conn.execute("insert into business values (1)")
    answer = mail.enqueue(conn, user_id=1)
    assert answer.created
    assert business.value(JOBS) == 0
    conn.commit()
    assert [row[0] for row in business.rows("select id from supervisor.job")] == [answer.id]
    mail.enqueue(conn, user_id=2)
    conn.rollback()
    assert business.value(JOBS) == 1


def test_a_job_of_a_rolled_back_savepoint_is_gone_and_the_rest_stays(business: Database, mail: Handler[Any]) -> None:
    conn = business.connect()
    with conn.transaction():
        kept = mail.enqueue(conn, user_id=1)
        with pytest.raises(Mine), conn.transaction():
            mail.enqueue(conn, user_id=2)
            mail.enqueue_many(conn, [{"user_id": n} for n in range(5)])
            enqueue_many(conn, [NewJob("x") for _ in range(2100)])
            raise Mine
        conn.execute("insert into business values (1)")
    assert [row[0] for row in business.rows("select id from supervisor.job")] == [kept.id]


async def test_an_async_connection_is_the_same(db: Database, mail: Handler[Any]) -> None:
    async with await db.aconnect() as conn:
        async with conn.transaction():
            first = await mail.enqueue(conn, user_id=1)
            with pytest.raises(Mine):
                async with conn.transaction():
                    await mail.enqueue(conn, user_id=2)
                    raise Mine
            more = await mail.enqueue_many(conn, [{"user_id": 3}, {"user_id": 4}])
            named = await enqueue(conn, "mail", {"user_id": 5})
            bulk = await enqueue_many(conn, [NewJob("x", {"n": n}) for n in range(2100)])
            assert await enqueue_many(conn, []) == []
            assert status(conn) == pq.TransactionStatus.INTRANS
        assert status(conn) == pq.TransactionStatus.IDLE
    ids = [answer.id for answer in (first, *more, named, *bulk)]
    assert [row[0] for row in db.rows("select id from supervisor.job order by id")] == ids
    assert db.rows("select (payload ->> 'n')::int from supervisor.job where kind = 'x' order by id") == [
        (n,) for n in range(2100)
    ]


def test_the_callers_connection_may_be_of_any_make(db: Database, mail: Handler[Any]) -> None:
    for autocommit in (True, False):
        with psycopg.connect(
            db.conninfo, autocommit=autocommit, row_factory=dict_row, cursor_factory=psycopg.ClientCursor
        ) as conn:
            conn.execute("set time zone 'Asia/Kathmandu'")
            conn.execute("set datestyle = 'German'")
            conn.execute("set search_path = pg_temp")
            assert mail.enqueue(conn, user_id=1).created
            assert [answer.created for answer in mail.enqueue_many(conn, [{"user_id": 2}, {"user_id": 3}])] == [
                True
            ] * 2
            assert len(enqueue_many(conn, [NewJob("x")] * 2001)) == 2001
            late = enqueue(conn, "late", run_at=datetime(2100, 1, 2, 3, 4, 5, 678901, UTC), timeout=90)
            expected = pq.TransactionStatus.IDLE if autocommit else pq.TransactionStatus.INTRANS
            assert status(conn) == expected
        row = stored(db, late.id)
        assert (datetime.fromisoformat(row["run_at"]), row["timeout"]) == (
            datetime(2100, 1, 2, 3, 4, 5, 678901, UTC),
            "00:01:30",
        )


def test_a_connection_in_pipeline_mode_works(db: Database, mail: Handler[Any]) -> None:
    for autocommit in (True, False):
        with db.connect(autocommit=autocommit) as conn, conn.pipeline():
            conn.execute("select 1")
            assert mail.enqueue(conn, user_id=1).created
            assert len(enqueue_many(conn, [NewJob("x")] * 2001)) == 2001  # PostgreSQL has no COPY here
            with conn.transaction():
                mail.at(unique_key="k").enqueue(conn, user_id=1)
            with pytest.raises(UniqueConflict):
                mail.at(unique_key="k", on_conflict="raise").enqueue(conn, user_id=1)
            with pytest.raises(UniqueConflict):
                mail.at(unique_key="k", on_conflict="raise").enqueue_many(conn, [{"user_id": 1}])
            conn.execute("delete from supervisor.job where unique_key = 'k'")
    assert db.value(JOBS) == 2 * 2002


@pytest.mark.parametrize("threshold", [None, 0])
def test_statements_are_prepared_where_the_connection_says_so(
    db: Database, mail: Handler[Any], threshold: int | None
) -> None:
    """A caller behind PgBouncer in transaction mode sets that to None: the next statement may meet another session."""
    conn = db.connect()
    conn.prepare_threshold = threshold
    for n in range(10):
        mail.enqueue(conn, user_id=n)
        mail.enqueue_many(conn, [{"user_id": n}])
    found = conn.execute("select statement from pg_prepared_statements where statement like '%enqueue%'").fetchall()
    prepared = [text for (text,) in found if "pg_prepared_statements" not in text]
    assert len(prepared) == (0 if threshold is None else 1)
    assert not any("enqueue_many" in text for text in prepared)


def test_a_database_without_the_schema_says_what_to_do(blank_db: Database) -> None:
    conn = blank_db.connect()
    with pytest.raises(SchemaMissing, match="supervisor migrate"):
        enqueue(conn, "mail")
    conn.execute("create schema supervisor")
    for jobs in ([NewJob("x")], [NewJob("x")] * 2001):
        with pytest.raises(SchemaMissing):
            enqueue_many(conn, jobs)


# -- what is stored ----------------------------------------------------------------------------


def test_a_handlers_values_and_an_enqueues_options_are_stored(db: Database, mail: Handler[Any]) -> None:
    conn = db.connect()
    plain = stored(db, mail.enqueue(conn, 7).id)
    assert {name: plain[name] for name in ("kind", "queue", "priority", "max_attempts", "max_crashes", "payload")} == {
        "kind": "mail",
        "queue": "email",
        "priority": 2,
        "max_attempts": 7,
        "max_crashes": 2,
        "payload": {"user_id": 7},
    }
    assert (plain["timeout"], plain["headers"], plain["attempts"], plain["lease"]) == (None, {}, 0, None)
    options: dict[str, Any] = {
        "queue": "slow",
        "priority": -100,
        "in_": timedelta(hours=1),
        "max_attempts": 32767,
        "max_crashes": 1,
        "timeout": 1.5,
        "headers": {"trace": "x"},
    }
    single = stored(db, mail.at(unique_key="a", **options).enqueue(conn, 7).id)
    [many] = mail.at(unique_key="b", **options).enqueue_many(conn, [{"user_id": 7}])
    copied = mail.at(**options).enqueue_many(conn, [{"user_id": 7}] * 2001)
    unlike = ("id", "run_at", "created_at", "unique_key")
    for other in (stored(db, many.id), stored(db, copied[0].id), stored(db, copied[-1].id)):
        assert {k: v for k, v in other.items() if k not in unlike} == {
            k: v for k, v in single.items() if k not in unlike
        }
        wait = datetime.fromisoformat(other["run_at"]) - datetime.fromisoformat(other["created_at"])
        assert abs(wait - timedelta(hours=1)) < timedelta(seconds=5)


@pytest.mark.parametrize("count", [1, 2, 2001])
def test_a_time_in_the_past_means_now_by_the_databases_clock(db: Database, count: int) -> None:
    conn = db.connect()
    before = db.value("select clock_timestamp()")
    past = datetime(2000, 1, 1, tzinfo=UTC)
    if count == 1:
        enqueue(conn, "x", run_at=past)
    else:
        enqueue_many(conn, [NewJob("x", run_at=past)] * count)
    [(first, last, after)] = db.rows("select min(run_at), max(run_at), clock_timestamp() from supervisor.job")
    assert before <= first <= last <= after


COLUMNS = """select kind, queue, priority, extract(epoch from run_at - created_at) > 1800, max_attempts, max_crashes,
                    timeout, payload, headers from supervisor.job order by id"""
CHOICES: list[dict[str, Any]] = [
    {},
    {"queue": "q\\t"},
    {"priority": -7},
    {"in_": 3600},
    {"run_at": datetime(2200, 1, 1, tzinfo=UTC)},
    {"max_attempts": 1},
    {"max_crashes": 9},
    {"timeout": 1.25},
    {"headers": {"a": "\\N\n"}},
]


@pytest.mark.pg("15", "16", "18")
@pytest.mark.parametrize(
    "chosen", [*([one] for one in CHOICES), CHOICES], ids=lambda c: "+".join(n for d in c for n in d)
)
def test_a_bulk_is_stored_alike_however_it_is_sent(db: Database, chosen: list[dict[str, Any]]) -> None:
    """By COPY only the columns are sent in which some job is not as usual."""
    conn = db.connect()
    jobs = [NewJob("k\\", {"n": n, "s": "a\\b\tc"}, **chosen[n % len(chosen)]) for n in range(2001)]
    found = []
    for part in ([jobs], [jobs[:1000], jobs[1000:]]):
        ids = [answer.id for some in part for answer in enqueue_many(conn, some)]
        assert [row[0] for row in db.rows("select id from supervisor.job order by id")] == ids
        found.append(db.rows(COLUMNS))
        db.execute("delete from supervisor.job")
    copied, sent = found
    assert copied == sent
    assert [row[7]["n"] for row in copied] == list(range(2001))


ODD_TEXTS = ("\\", "\\N", 'a"b', "tab\tline\n", "\x01\x7f", "\u00fc\u20ac\U0001f600", "%s", None)


@pytest.mark.parametrize("like_the_first", [True, False], ids=["alike", "unlike"])
@pytest.mark.parametrize("count", [3, 2001])
def test_a_handlers_bulk_is_what_as_many_of_its_jobs_are(db: Database, count: int, like_the_first: bool) -> None:
    def send(n: int, note: str | None = None) -> None: ...

    several = handler("several", queue="q", priority=3)(send).at(in_=3600, headers={"h": 1}, max_crashes=5)
    conn = db.connect()
    payloads: list[dict[str, Any]] = [
        {"n": n, "note": ODD_TEXTS[n % len(ODD_TEXTS)]} if n % 2 or like_the_first else {"n": n} for n in range(count)
    ]
    answers = several.enqueue_many(conn, payloads)
    assert answers == [Enqueued(answer.id, True) for answer in answers]
    own = db.rows(COLUMNS)
    assert [row[7] for row in own] == payloads
    db.execute("delete from supervisor.job")
    enqueue_many(conn, [several.from_payload(payload) for payload in payloads])
    assert db.rows(COLUMNS) == own


def test_ids_of_a_copy_are_those_of_its_jobs_when_others_were_given_in_between(db: Database) -> None:
    db.execute("alter sequence supervisor.job_id_seq increment by 3")
    answers = enqueue_many(db.connect(), [NewJob("x", {"n": n}) for n in range(2001)])
    stored_as = db.rows("select id, (payload ->> 'n')::int from supervisor.job order by id")
    assert stored_as == [(answer.id, n) for n, answer in enumerate(answers)]
    assert answers[1].id - answers[0].id == 3


ODD_PAYLOADS: list[dict[str, Any]] = [
    {},
    {"": {"": []}},
    {"big": 2**63, "bigger": -(2**200), "huge": 1e308, "tiny": 5e-324, "float": 1e23, "third": 1 / 3},
    {"text": "é\u2028\U0001f600\x01\x7f\"'\\\\n\n\t%s{}$$", "\ufffe": "\uffff"},
    json.loads('{"a":' * 100 + "1" + "}" * 100),
    {"large": "x" * 10_000_000},
    {"list": list(range(1000))},
]

REFUSED: list[dict[str, Any]] = [
    {"a": "\x00"},
    {"\x00": 1},
    {"a": "\ud800"},
    {"a": float("nan")},
    {"a": float("-inf")},
    {"a": {1}},
    {"a": "x" * 17_000_000},
]


def test_odd_payloads_read_back_equal_or_leave_the_transaction_alone(business: Database) -> None:
    """B20, for one, many and COPY."""
    conn = business.connect(autocommit=False)
    for payload in ODD_PAYLOADS:
        ways: list[Callable[[], list[Enqueued]]] = [
            lambda payload=payload: [enqueue(conn, "x", payload)],  # type: ignore[misc]
            lambda payload=payload: enqueue_many(conn, [NewJob("x", payload)]),  # type: ignore[misc]
        ]
        if "large" not in payload:
            ways.append(lambda payload=payload: enqueue_many(conn, [NewJob("x", payload)] * 2001))  # type: ignore[misc]
        for way in ways:
            [row] = conn.execute("select payload::text from supervisor.job where id = %s", [way()[-1].id]).fetchall()
            assert json.loads(row[0]) == payload
    conn.rollback()
    for number, payload in enumerate(REFUSED):
        conn.execute("insert into business values (%s)", [number])
        for refused in (
            lambda payload=payload: enqueue(conn, "x", payload),
            lambda payload=payload: enqueue(conn, "x", headers=payload),
            lambda payload=payload: enqueue_many(conn, [NewJob("ok"), NewJob("x", payload)]),
        ):
            with pytest.raises(InvalidJob, match=r"payload|headers"):
                refused()
            assert status(conn) == pq.TransactionStatus.INTRANS
        conn.commit()
    assert business.value("select count(*)::int from business") == len(REFUSED)
    assert business.value(JOBS) == 0


ODD_NAMES = [
    "a'b", 'a"b', "a;b", "a--b", "$$a$$", "$q$", "a\\b", "a.b", "50%", "%s", "%(x)s", "{x}", "{schema}", "select",
    "UPPER", "é", "'; drop table canary; --", "x" * 128,
]  # fmt: skip


def test_odd_names_work_or_are_refused_and_nothing_else_happens(db: Database) -> None:
    """B40."""
    db.execute("create table canary (id int)")
    conn = db.connect(autocommit=False)
    for name in ODD_NAMES:
        single = enqueue(conn, name, queue=name, unique_key=name, headers={name: name})
        [many] = enqueue_many(conn, [NewJob(name, queue=name, unique_key=name)])
        assert many == Enqueued(single.id, False)
        copied = enqueue_many(conn, [NewJob(name, {name: name}, queue=name)] * 2001)
        conn.commit()
        for job_id in (single.id, copied[-1].id):
            row = stored(db, job_id)
            assert (row["kind"], row["queue"]) == (name, name)
    for name in ("", "a\nb", "a\x00", "x" * 200, " x"):
        with pytest.raises(InvalidJob):
            enqueue(conn, name)
        with pytest.raises(InvalidJob):
            enqueue(conn, "x", queue=name)
    for schema in (*ODD_NAMES, "", "public.x"):
        if schema not in ("select", "x" * 128):
            with pytest.raises(InvalidJob, match="schema"):
                enqueue(conn, "x", schema=schema)
    conn.rollback()
    with pytest.raises(SchemaMissing):
        enqueue(conn, "x", schema="select")  # a legal name, quoted; it is not there
    conn.rollback()
    assert db.value("select count(*)::int from canary") == 0


def test_another_schema_is_another_queue(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    from supervisor.db.migrate import migrate

    for schema in ("select", "s" * 48):
        migrate(db.conninfo, schema=schema)
        conn = db.connect()
        enqueue(conn, "x", schema=schema)
        enqueue_many(conn, [NewJob("x")] * 2001, schema=schema)
        monkeypatch.setenv("SUPERVISOR_SCHEMA", schema)
        enqueue(conn, "x")
        monkeypatch.delenv("SUPERVISOR_SCHEMA")
        assert db.value(f'select count(*)::int from "{schema}".job') == 2003
    assert db.value(JOBS) == 0


def test_ids_above_two_to_the_31_work_everywhere(db: Database, mail: Handler[Any]) -> None:
    """B11."""
    db.execute("select setval(pg_get_serial_sequence('supervisor.job', 'id'), 3000000000)")
    conn = db.connect()
    ids = [
        mail.enqueue(conn, 1).id,
        *(answer.id for answer in mail.enqueue_many(conn, [{"user_id": 1}] * 2)),
        *(answer.id for answer in mail.enqueue_many(conn, [{"user_id": 1}] * 2001)),
        mail.at(unique_key="k").enqueue(conn, 1).id,
    ]
    assert ids == sorted(ids)
    assert min(ids) > 3_000_000_000
    assert mail.at(unique_key="k").enqueue(conn, 1) == (ids[-1], False)
    assert mail.at(unique_key="k", on_conflict="replace").enqueue(conn, 2) == (ids[-1], False)
    with pytest.raises(UniqueConflict, match=str(ids[-1])):
        mail.at(unique_key="k", on_conflict="raise").enqueue(conn, 2)


# -- unique keys -------------------------------------------------------------------------------


def test_skip_keeps_the_job_and_replace_gives_it_new_content(db: Database, mail: Handler[Any]) -> None:
    conn = db.connect()
    first = mail.at(unique_key="k").enqueue(conn, 1)
    assert mail.at(unique_key="k").enqueue(conn, 2) == Enqueued(first.id, False)
    assert stored(db, first.id)["payload"] == {"user_id": 1}

    newer = mail.at(unique_key="k", on_conflict="replace", priority=9, queue="slow", max_attempts=3, in_=3600)
    assert newer.enqueue(conn, 3) == Enqueued(first.id, False)
    row = stored(db, first.id)
    assert (row["payload"], row["priority"], row["queue"], row["max_attempts"]) == ({"user_id": 3}, 9, "slow", 3)
    assert newer.enqueue_many(conn, [{"user_id": 4}]) == [Enqueued(first.id, False)]
    assert stored(db, first.id)["payload"] == {"user_id": 4}

    db.execute("update supervisor.job set lease = 1")  # it runs: what it was started with stays
    assert newer.enqueue(conn, 5) == Enqueued(first.id, False)
    assert stored(db, first.id)["payload"] == {"user_id": 4}


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_conflict_that_is_raised_takes_back_its_bulk_and_nothing_else(
    business: Database, mail: Handler[Any], autocommit: bool
) -> None:
    first = mail.at(unique_key="k").enqueue(business.connect(), 1)
    conn = business.connect(autocommit=autocommit)
    if not autocommit:
        conn.execute("insert into business values (1)")
    with pytest.raises(UniqueConflict) as single:
        mail.at(unique_key="k", on_conflict="raise").enqueue(conn, 2)
    assert (single.value.unique_key, single.value.job_id, single.value.more) == ("k", first.id, 0)
    bulk = [NewJob("x"), NewJob("x", unique_key="new"), NewJob("x", unique_key="k"), NewJob("x", unique_key="new")]
    with pytest.raises(UniqueConflict) as many:
        enqueue_many(conn, bulk, on_conflict="raise")
    assert (many.value.unique_key, many.value.job_id, many.value.more) == ("k", first.id, 1)
    fresh = enqueue_many(conn, [NewJob("x"), NewJob("x", unique_key="other")], on_conflict="raise")
    assert [answer.created for answer in fresh] == [True, True]
    if not autocommit:
        assert status(conn) == pq.TransactionStatus.INTRANS
        assert business.value(JOBS) == 1
        conn.commit()
        assert business.value("select count(*)::int from business") == 1
    assert business.value(JOBS) == 3


async def test_a_raised_conflict_on_an_idle_async_connection_commits_nothing(db: Database) -> None:
    async with await db.aconnect(autocommit=False) as conn:
        await enqueue_many(conn, [NewJob("x", unique_key="a")], on_conflict="raise")
        assert status(conn) == pq.TransactionStatus.INTRANS
        assert db.value(JOBS) == 0
        await conn.rollback()
    assert db.value(JOBS) == 0


@pytest.mark.parametrize("other_commits", [True, False])
def test_a_key_waits_for_the_transaction_that_has_it(db: Database, mail: Handler[Any], other_commits: bool) -> None:
    """B34: "exists already" must never be said of a job that is then rolled back."""
    unique = mail.at(unique_key="k")
    a, b = db.connect(autocommit=False), db.connect()
    of_a = unique.enqueue(a, 1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(unique.enqueue, b, 2)
        db.wait_for("select wait_event_type from pg_stat_activity where pid = %s", "Lock", params=[b.info.backend_pid])
        (a.commit if other_commits else a.rollback)()
        of_b = waiting.result(10)
    assert of_b.created is not other_commits
    assert (of_b.id == of_a.id) is other_commits
    assert db.rows("select id from supervisor.job") == [(of_b.id,)]


def test_fifty_clients_of_a_thousand_keys_leave_one_job_for_each_key_that_was_committed(db: Database) -> None:
    """B34: each client asks for 100 of the keys, one transaction each; half of them roll back."""
    committed: list[tuple[str, Enqueued]] = []
    lock = threading.Lock()

    def client(number: int) -> None:
        rng = random.Random(number)
        with psycopg.connect(db.conninfo) as conn:
            for _ in range(100):
                key = f"key-{rng.randrange(1000)}"
                if rng.random() < 0.5:
                    answer = enqueue(conn, "x", unique_key=key)
                else:
                    [answer] = enqueue_many(conn, [NewJob("x", unique_key=key)])
                if rng.random() < 0.5:
                    conn.rollback()
                else:
                    conn.commit()
                    with lock:
                        committed.append((key, answer))

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(client, range(50)))
    jobs: dict[str, int] = dict(db.rows("select unique_key, id from supervisor.job"))
    assert set(jobs) == {key for key, _ in committed}
    assert all(jobs[key] == answer.id for key, answer in committed)
    made = Counter(key for key, answer in committed if answer.created)
    assert set(made.values()) == {1}


def _mixed_bulk(db: Database) -> list[NewJob]:
    """1,000 jobs: 300 repeat a key of the bulk, 200 meet a key that exists in some state."""
    conn = db.connect()
    existing = [enqueue(conn, "old", unique_key=f"old-{n}").id for n in range(200)]
    db.execute("update supervisor.job set lease = 1, claims = 1 where id = any(%s)", [existing[50:100]])
    db.execute("delete from supervisor.job where id = any(%s)", [existing[100:150]])  # done
    db.execute("update supervisor.job set lease = 1, claims = 1 where id = any(%s)", [existing[150:]])
    for job_id in existing[150:]:
        db.execute("select supervisor.bury(%s, 'dead', 'cancel')", [job_id])
    keys = [f"new-{n}" for n in range(300)] * 2 + [f"old-{n}" for n in range(200)]
    random.Random(7).shuffle(keys)
    jobs = [NewJob("mail", {"n": n}, unique_key=key) for n, key in enumerate(keys)]
    return [*jobs[:400], *(NewJob("mail", {"n": n}) for n in range(800, 1000)), *jobs[400:]]


@pytest.mark.parametrize("on_conflict", ["skip", "replace"])
def test_a_bulk_makes_the_jobs_that_single_calls_would(db: Database, on_conflict: Any) -> None:
    """B35."""
    jobs = _mixed_bulk(db)
    assert len(jobs) == 1000
    question = "select unique_key, kind, payload ->> 'n', lease from supervisor.job order by 1, 2, 3"
    conn = db.connect(autocommit=False)

    singles = [
        enqueue(conn, job.kind, json.loads(job.payload_json), unique_key=job.unique_key, on_conflict=on_conflict)
        for job in jobs
    ]
    by_singles = conn.execute(question).fetchall()
    conn.rollback()
    bulk = enqueue_many(conn, jobs, on_conflict=on_conflict)
    by_bulk = conn.execute(question).fetchall()
    conn.commit()

    assert by_bulk == by_singles
    assert [answer.created for answer in bulk] == [answer.created for answer in singles]
    # The same key has the same job for each of its calls.
    assert len({answer.id for answer in bulk}) == len({answer.id for answer in singles}) == len(by_bulk)


# -- crashes of the caller ---------------------------------------------------------------------

# Forks a caller per line it reads ("first-number way"), so that each costs no start of Python.
CALLERS = """
import asyncio, itertools, os, signal, sys, psycopg
from supervisor import enqueue, handler
conninfo, launcher = sys.argv[1], os.getpid()

@handler("mail")
def mail(business_id: int) -> None: ...

def numbers(first):
    print(os.getpid(), flush=True)
    return itertools.takewhile(lambda _: os.getppid() == launcher, itertools.count(first))

def work(first):
    with psycopg.connect(conninfo) as conn:
        for n in numbers(first):
            with conn.transaction():
                conn.execute("insert into business values (%s)", [n])
                with conn.transaction():
                    mail.enqueue(conn, business_id=n)

async def work_async(first):
    async with await psycopg.AsyncConnection.connect(conninfo) as conn:
        for n in numbers(first):
            async with conn.transaction():
                async with conn.transaction():
                    await enqueue(conn, "mail", {"business_id": n})
                await conn.execute("insert into business values (%s)", [n])

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    first, way = line.split()
    if os.fork() == 0:
        work(int(first)) if way == "sync" else asyncio.run(work_async(int(first)))
        os._exit(0)
"""


@pytest.fixture
def callers(business: Database) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", CALLERS, business.conninfo]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as launcher:
        yield launcher
        launcher.kill()


def test_killed_callers_leave_a_job_exactly_where_they_left_a_row(
    business: Database, callers: subprocess.Popen[str]
) -> None:
    """B49: SIGKILLs at random points, sync and async, with nested savepoints."""
    assert callers.stdin is not None
    assert callers.stdout is not None
    rng = random.Random(49)
    kills = 200 if FULL else 80
    for number in range(kills):
        callers.stdin.write(f"{number * 1_000_000} {'sync' if number % 2 else 'async'}\n")
        callers.stdin.flush()
        pid = int(callers.stdout.readline())
        # Not a wait for something to happen: the point of the kill is the fault that is injected.
        threading.Event().wait(rng.uniform(0, 0.03))
        os.kill(pid, signal.SIGKILL)
    # What a session is in the middle of when its client dies may still commit.
    business.wait_for(
        "select count(*)::int from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        " and backend_type = 'client backend'",
        0,
    )
    rows = {row[0] for row in business.rows("select id from business")}
    jobs = [row[0] for row in business.rows("select (payload ->> 'business_id')::int from supervisor.job")]
    assert len(rows) > kills / 4, "they hardly got to anything"
    assert len(jobs) == len(set(jobs))
    assert set(jobs) == rows
