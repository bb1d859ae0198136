"""Keys, limits, parents and batches, by every way to add a job: stored alike, refused alike, before any write."""

import json
from typing import Any

import psycopg
import pytest
from psycopg import pq

from supervisor import NewJob, enqueue, enqueue_batch, enqueue_many, handler
from supervisor.errors import InvalidHandler, InvalidJob, UniqueConflict
from tests.support.database import Database
from tests.support.queue import Conn, Holder

PASS = "select let_in from supervisor.pass_gates('1970-01-01', 10000)"
WAITING = "select id, waits_for from supervisor.jobs where waits_for is not null order by id"
GATED = (
    "select gate, ordering_key, ordering_hold, concurrency_key, concurrency_limit, rate_key, rate_limit,"
    " extract(epoch from rate_period)::int, extract(epoch from due_at - j.created_at)::int,"
    " array(select (parent, failed)::text from supervisor.job_after l where l.child = g.job_id order by 1)"
    " from supervisor.gated g join supervisor.job j on j.id = g.job_id where g.job_id = %s"
)


@pytest.fixture
def conn(db: Database) -> Conn:
    return db.connect()


OPTIONS: dict[str, dict[str, Any]] = {
    "order": {"ordering_key": "o", "on_dead": "hold", "in_": 60},
    "concurrency": {"concurrency_key": "c", "concurrency_limit": 3},
    "rate": {"rate_key": "r", "rate_limit": 10, "rate_period": 60},
    "after": {"after": [1, 2, 1], "after_failed": "cancel"},
    "all": {
        "ordering_key": "é" * 512, "concurrency_key": "'\"\\{}", "concurrency_limit": 10_000, "rate_key": "%s",
        "rate_limit": 1_000_000, "rate_period": 366 * 86_400, "after": [2],
    },
}  # fmt: skip


@pytest.mark.pg("15", "16", "18")
@pytest.mark.parametrize("name", OPTIONS)
async def test_every_way_stores_the_same(db: Database, conn: Conn, name: str) -> None:
    options = OPTIONS[name]
    for _ in range(2):
        enqueue(conn, "parent")

    @handler("options", **{k: v for k, v in options.items() if k not in ("in_", "after", "after_failed")})
    def work() -> None: ...

    named: dict[str, Any] = {("delay" if k == "in_" else k): v for k, v in options.items()}
    lengths = {"delay": "interval", "rate_period": "interval", "after": "bigint[]"}
    called = ", ".join(f"{k} => %({k})s::{lengths[k]}" if k in lengths else f"{k} => %({k})s" for k in named)
    given = {k: f"{v} s" if lengths.get(k) == "interval" else v for k, v in named.items()}
    rest: dict[str, Any] = {k: v for k, v in options.items() if k in ("in_", "after", "after_failed")}
    ids = [
        enqueue(conn, "options", **options).id,
        enqueue(conn, "options", unique_key="u1", **options).id,
        enqueue_many(conn, [NewJob("plain"), NewJob("options", **options)])[1].id,
        enqueue_many(conn, [NewJob("options", unique_key="u2", **options)])[0].id,
        enqueue_many(conn, [NewJob("plain")] * 2001 + [NewJob("options", **options)])[-1].id,
        work.at(**rest).enqueue(conn).id,
        *[row[0] for row in conn.execute(f"select id from supervisor.enqueue('options', {called})".encode(), given)],
        *[
            row[0]
            for row in conn.execute(
                "select id from supervisor.enqueue_many(%s)", [json.dumps([{"kind": "options", **named}])]
            )
        ],
    ]
    async with await db.aconnect() as aconn:
        ids.append((await enqueue(aconn, "options", **options)).id)
        ids.append((await enqueue_many(aconn, [NewJob("options", **options)]))[0].id)
    assert len(set(ids)) == 10
    rows = [db.rows(GATED, [one])[0] for one in ids]
    assert all(row == rows[0] for row in rows)
    places = {"order": 2, "concurrency": 3, "rate": 4, "after": 1, "all": 1}
    assert rows[0][0] == places[name]
    assert rows[0][9] == {"after": ["(1,cancel)", "(2,cancel)"], "all": ["(2,hold)"]}.get(name, [])
    assert rows[0][8] == (60 if name == "order" else 0)
    assert db.value("select count(*)::int from supervisor.job where gated and run_at = '9999-12-31+00'") == 10
    assert db.value("select count(*)::int from supervisor.job where kind = 'plain' and gated is null") == 2002


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"ordering_key": ""}, "ordering_key", "ordering_key must be 1 to 1024 bytes long, not 0"),
    ({"ordering_key": "é" * 513}, "ordering_key", "ordering_key must be 1 to 1024 bytes long, not 1026"),
    ({"ordering_key": "o", "on_dead": "skip"}, "on_dead", "on_dead is 'skip', must be next or hold"),
    ({"on_dead": "hold"}, "ordering_key", "on_dead is given, and ordering_key is not"),
    ({"concurrency_key": "c"}, "concurrency_limit", "concurrency_limit is not given, and concurrency_key is"),
    ({"concurrency_limit": 1}, "concurrency_key", "concurrency_key is not given, and concurrency_limit is"),
    (
        {"concurrency_key": "c", "concurrency_limit": 0}, "concurrency_limit",
        "concurrency_limit is 0, must be 1 to 10000",
    ),
    (
        {"concurrency_key": "c", "concurrency_limit": 10001}, "concurrency_limit",
        "concurrency_limit is 10001, must be 1 to 10000",
    ),
    ({"rate_key": "r", "rate_period": 1}, "rate_limit", "rate_limit is not given, and rate_key is"),
    ({"rate_key": "r", "rate_limit": 1}, "rate_period", "rate_period is not given, and rate_key is"),
    ({"rate_limit": 1}, "rate_key", "rate_key is not given, and rate_limit is"),
    (
        {"rate_key": "r", "rate_limit": -1, "rate_period": 60}, "rate_limit", "rate_limit is -1, must be 1 to 1000000"
    ),
    (
        {"rate_key": "r", "rate_limit": 51, "rate_period": 1}, "rate_limit",
        "rate_limit is 51 in 1 s, must be one per 20 ms or less",
    ),
    (
        {"rate_key": "r", "rate_limit": 1, "rate_period": 0.5}, "rate_period",
        "rate_period is 0.5 s, must be 1 second to 366 days",
    ),
    ({"after": [0]}, "after", "after: no job has the id 0"),
    ({"after": [999]}, "after", "after: no job has the id 999"),
    ({"after": list(range(1, 1002))}, "after", "after has 1001 ids, must be at most 1000: use a batch"),
    ({"after_failed": "wait"}, "after_failed", "after_failed is 'wait', must be hold, cancel or run"),
    ({"unique_for": 5}, "unique_key", "unique_for is given, and unique_key is not"),
    ({"unique_key": "u", "unique_for": 0}, "unique_for", "unique_for must be above 0 and at most 3660 days"),
    ({"unique_states": ["queued"]}, "unique_key", "unique_states is given, and unique_key is not"),
    (
        {"unique_key": "u", "unique_states": []}, "unique_states",
        "unique_states must be one or more of queued, running, done, dead, cancelled",
    ),
    (
        {"unique_key": "u", "unique_states": ["waiting"]}, "unique_states",
        "unique_states must be one or more of queued, running, done, dead, cancelled",
    ),
    (
        {"unique_key": "u", "unique_states": ["done"]}, "unique_for",
        "unique_for is not given, and unique_states has one that ends never",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("bad", "field", "text"), REFUSED, ids=[text[:50] for _, _, text in REFUSED])
async def test_what_is_wrong_is_said_by_name_and_costs_the_transaction_nothing(
    db: Database, bad: dict[str, Any], field: str, text: str
) -> None:
    """B20, for SQL, single and bulk, and for Python, sync and async."""
    conn = db.connect(autocommit=False)
    conn.execute("select 1")  # the caller's transaction has begun
    lengths = {"rate_period": "interval", "unique_for": "interval", "after": "bigint[]", "unique_states": "text[]"}
    called = ", ".join(f"{k} => %({k})s::{lengths[k]}" if k in lengths else f"{k} => %({k})s" for k in bad)
    given = {k: f"{v} s" if lengths.get(k) == "interval" else v for k, v in bad.items()}
    with pytest.raises(psycopg.errors.InvalidParameterValue) as single, conn.transaction():
        conn.execute(f"select supervisor.enqueue('k', {called})".encode(), given)
    assert single.value.diag.message_primary == text
    with pytest.raises(psycopg.errors.InvalidParameterValue) as bulk, conn.transaction():
        conn.execute("select supervisor.enqueue_many(%s)", [json.dumps([{"kind": "k"}, {"kind": "k", **bad}])])
    assert bulk.value.diag.message_primary in (f"job 2: {text}", text)
    with pytest.raises(psycopg.errors.InvalidParameterValue) as batch, conn.transaction():
        conn.execute("select supervisor.enqueue_batch('[]', %s)", [json.dumps({"kind": "k", **bad})])
    assert batch.value.diag.message_primary == f"callback: {text}"

    ways: list[Any] = [
        lambda: enqueue(conn, "k", **bad),
        lambda: enqueue_many(conn, [NewJob("k"), NewJob("k", **bad)]),
        lambda: enqueue_batch(conn, [NewJob("k")], NewJob("k", **bad)),
    ]
    for way in ways:
        with pytest.raises(InvalidJob) as refused:
            way()
        assert refused.value.field.split(".")[-1] == field
        assert conn.info.transaction_status == pq.TransactionStatus.INTRANS
    async with await db.aconnect(autocommit=False) as aconn:
        await aconn.execute("select 1")
        with pytest.raises(InvalidJob):
            await enqueue(aconn, "k", **bad)
        with pytest.raises(InvalidJob):
            await enqueue_many(aconn, [NewJob("k"), NewJob("k", **bad)])
        assert aconn.info.transaction_status == pq.TransactionStatus.INTRANS
    enqueue(conn, "kept")
    conn.commit()
    assert db.value("select string_agg(kind, ',') from supervisor.job") == "kept"


def test_nul_and_wrong_types_are_named() -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"ordering_key": "a\0"}, "ordering_key"),
        ({"rate_key": "\ud800", "rate_limit": 1, "rate_period": 1}, "rate_key"),
        ({"concurrency_key": 5, "concurrency_limit": 1}, "concurrency_key"),
        ({"concurrency_key": "c", "concurrency_limit": True}, "concurrency_limit"),
        ({"rate_key": "r", "rate_limit": 1, "rate_period": float("nan")}, "rate_period"),
        ({"after": 5}, "after"),
        ({"after": ["5"]}, "after"),
        ({"unique_key": "u", "unique_states": "queued"}, "unique_states"),
    ]
    for options, field in bad:
        with pytest.raises(InvalidJob) as refused:
            NewJob("k", **options)
        assert refused.value.field == field


def test_a_handlers_limits_go_with_keys_that_are_given_later(db: Database, conn: Conn) -> None:
    @handler("limited", concurrency_limit=2, rate_limit=5, rate_period=10, unique_for=60, on_dead="hold")
    def limited() -> None: ...

    limited.enqueue(conn)
    assert db.rows("select gated, unique_key from supervisor.job") == [(None, None)]
    keyed = limited.at(concurrency_key="c", concurrency_limit=7, unique_key="u").enqueue(conn)
    assert db.rows("select concurrency_key, concurrency_limit, rate_key from supervisor.gated") == [("c", 7, None)]
    assert db.rows("select job_id from supervisor.unique_hold") == [(keyed.id,)]
    with pytest.raises(InvalidHandler, match="concurrency_limit"):
        handler("wrong", concurrency_key="c")(lambda: None)
    with pytest.raises(InvalidHandler, match="rate_limit"):
        handler("wrong", rate_limit=100, rate_period=1)(lambda: None)


# -- replace -----------------------------------------------------------------------------------


def test_a_waiting_job_that_is_replaced_waits_for_what_the_new_one_asks(db: Database, conn: Conn) -> None:
    first = enqueue(conn, "a", ordering_key="x")
    options: dict[str, Any] = {"unique_key": "k", "on_conflict": "replace"}
    job = enqueue(conn, "b", ordering_key="x", in_=60, **options)
    behind = enqueue(conn, "c", ordering_key="x")
    db.rows(PASS)
    assert db.rows(WAITING) == [(job.id, "order"), (behind.id, "order")]
    assert enqueue(conn, "b", ordering_key="x", in_=600, **options) == (job.id, False)
    assert db.value("select due_at > now() + interval '9 min' from supervisor.gated where job_id = %s", [job.id])
    enqueue(conn, "b", concurrency_key="y", concurrency_limit=1, **options)
    assert db.rows(WAITING) == [(job.id, "concurrency"), (behind.id, "order")]
    db.rows(PASS)
    holder = Holder(db)
    claimed = holder.claim(9).jobs
    assert sorted(one.id for one in claimed) == [first.id, job.id]
    assert enqueue(conn, "b", **options) == (job.id, False)
    holder.ack(*claimed)
    db.rows(PASS)
    assert Holder(db).claim(9).ids == [behind.id], "the key that it had left is free for the next"


def test_a_job_that_was_let_in_frees_its_key_when_it_is_replaced(db: Database, conn: Conn) -> None:
    options: dict[str, Any] = {"unique_key": "k", "on_conflict": "replace"}
    job = enqueue(conn, "b", ordering_key="x", **options)
    behind = enqueue(conn, "c", ordering_key="x")
    db.rows(PASS)
    assert db.rows(WAITING) == [(behind.id, "order")]
    enqueue(conn, "b", **options)
    db.rows(PASS)
    assert sorted(Holder(db).claim(9).ids) == [job.id, behind.id]
    assert db.value("select gated is null from supervisor.job where id = %s", [job.id])


def test_circles_are_refused_before_any_write(db: Database) -> None:
    conn = db.connect(autocommit=False)
    options: dict[str, Any] = {"unique_key": "k", "on_conflict": "replace"}
    first = enqueue(conn, "a", **options)
    second = enqueue(conn, "b", after=[first])
    third = enqueue(conn, "c", after=[second.id])
    conn.commit()
    for parents in ([first], [third], [second, third]):
        with pytest.raises(InvalidJob, match=f"after: job {first.id} would wait for itself"):
            enqueue(conn, "new", after=parents, **options)
        with pytest.raises(InvalidJob, match=r"jobs\[1\].after: job"):
            enqueue_many(conn, [NewJob("x"), NewJob("new", unique_key="k", after=parents)], on_conflict="replace")
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="would wait for itself"), conn.transaction():
            conn.execute(
                "select supervisor.enqueue('new', unique_key => 'k', on_conflict => 'replace', after => %s::bigint[])",
                [[third.id]],
            )
    conn.commit()
    assert db.value("select count(*)::int from supervisor.job where kind in ('x', 'new')") == 0
    other = enqueue(conn, "other")
    assert enqueue(conn, "new", after=[other], **options) == (first.id, False)
    conn.commit()
    assert db.rows("select parent, child from supervisor.job_after order by 1")[-1] == (other.id, first.id)


# -- batches -----------------------------------------------------------------------------------


def run_all(db: Database, event: str = "done") -> list[int]:
    holder = Holder(db)
    jobs = holder.claim(20_000).jobs
    if event == "done":
        holder.ack(*jobs)
    else:
        holder.settle(jobs, event)
    return [job.id for job in jobs]


@pytest.mark.parametrize("count", [0, 1, 3, 2500])
async def test_the_last_job_of_a_batch_runs_when_all_have_ended(db: Database, count: int) -> None:
    async with await db.aconnect() as aconn:
        batch = await enqueue_batch(aconn, [NewJob("part", {"n": n}) for n in range(count)], NewJob("sum"))
    assert [job.created for job in batch.jobs] == [True] * count
    db.rows(PASS)
    if count:
        assert db.rows(WAITING) == [(batch.then.id, "parents")]
        assert sorted(run_all(db)) == [job.id for job in batch.jobs]
        db.rows(PASS)
    assert run_all(db) == [batch.then.id]


@pytest.mark.parametrize(("failed", "ends"), [(None, "runs"), ("hold", "waits"), ("cancel", "cancelled")])
def test_what_a_dead_part_means_is_the_last_jobs_choice(db: Database, conn: Conn, failed: Any, ends: str) -> None:
    batch = enqueue_batch(conn, [NewJob("part")] * 2, NewJob("sum", after_failed=failed))
    db.rows(PASS)
    run_all(db, "dead")
    db.rows(PASS)
    [status] = db.rows("select status, waits_for from supervisor.jobs where id = %s", [batch.then.id])
    assert status == {"runs": ("queued", None), "waits": ("queued", "parents"), "cancelled": ("cancelled", None)}[ends]


def test_a_batch_is_whole_or_not_at_all(db: Database) -> None:
    held = enqueue(db.connect(), "old", unique_key="k")
    conn = db.connect(autocommit=False)
    conn.execute("create table business (id int)")
    for jobs, then in (
        ([NewJob("part"), NewJob("part", unique_key="k")], NewJob("sum")),
        ([NewJob("part")], NewJob("sum", unique_key="k")),
    ):
        with pytest.raises(UniqueConflict) as conflict:
            enqueue_batch(conn, jobs, then, on_conflict="raise")
        assert conflict.value.job_id == held.id
    conn.commit()
    assert db.rows("select kind from supervisor.job") == [("old",)]
    batch = enqueue_batch(conn, [NewJob("part", unique_key="k"), NewJob("part")], NewJob("sum"))
    assert batch.jobs[0] == (held.id, False)
    conn.rollback()
    assert db.rows("select kind from supervisor.job") == [("old",)]


def test_a_batch_from_sql_and_with_a_handler(db: Database, conn: Conn) -> None:
    @handler("sum.up")
    def sum_up(day: str = "today") -> None: ...

    rows = conn.execute(
        "select ord, id, created from supervisor.enqueue_batch("
        """'[{"kind": "part"}, {"kind": "part", "unique_key": "u"}]', '{"kind": "sum.up"}')"""
    ).fetchall()
    assert [(row[0], row[2]) for row in rows] == [(1, True), (2, True), (0, True)]
    assert db.rows("select parent, child, failed from supervisor.job_after order by 1") == [
        (rows[0][1], rows[2][1], "run"), (rows[1][1], rows[2][1], "run")
    ]  # fmt: skip
    assert enqueue_batch(conn, [], sum_up).then.created
    batch = enqueue_batch(conn, [NewJob("part")], sum_up.new_job("monday"))
    assert db.value("select payload from supervisor.job where id = %s", [batch.then.id]) == {"day": "monday"}
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="parents: no job has the id 7777"):
        conn.execute("select supervisor.enqueue_batch('[]', '{\"kind\": \"k\"}', '{7777}')")
    wrong: Any = "sum.up"
    with pytest.raises(InvalidJob, match="then"):
        enqueue_batch(conn, [], wrong)


# -- the form of before ------------------------------------------------------------------------


def test_whoever_had_been_given_the_right_to_the_form_of_before_keeps_it(db: Database) -> None:
    """And calls by its names, or by position, go on."""
    from supervisor.db.migrate import migrate

    old = "text, jsonb, text, integer, timestamptz, interval, integer, integer, interval, text, text, jsonb"
    db.execute("drop function supervisor.enqueue")
    db.execute(
        "create function supervisor.enqueue(kind text, payload jsonb default '{}', queue text default 'default',"
        " priority integer default 0, run_at timestamptz default null, delay interval default null,"
        " max_attempts integer default 20, max_crashes integer default 3, timeout interval default null,"
        " unique_key text default null, on_conflict text default 'skip', headers jsonb default '{}')"
        " returns table (id bigint, created boolean) language sql as $$ select 1::bigint, true $$"
    )
    db.execute(f"revoke all on function supervisor.enqueue({old}) from public")
    db.execute(f"grant execute on function supervisor.enqueue({old}) to pg_monitor")
    db.execute("update supervisor.migration set functions = 'of before', functions_by = null")
    assert migrate(db.conninfo).functions_installed
    acls = db.rows(
        "select r.grantee::regrole::text from pg_proc p, aclexplode(p.proacl) r"
        " where p.pronamespace = 'supervisor'::regnamespace and p.proname = 'enqueue' and r.grantee <> p.proowner"
    )
    assert acls == [("pg_monitor",)]
    assert db.rows(
        "select created from supervisor.enqueue('k', '{}', 'q', 0, null, null, 20, 3, null, null, 'skip', '{}')"
        " union all select created from supervisor.enqueue('k', unique_key => 'u', headers => '{}')"
    ) == [(True,), (True,)]
