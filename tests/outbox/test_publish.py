"""Publishing: an event exists exactly when its transaction committed; what cannot be stored is refused at the edge."""

import asyncio
import random
import signal
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from opentelemetry.sdk.trace import TracerProvider

from supervisor import NewEvent, publish, publish_many
from supervisor.errors import InvalidEvent, SchemaMissing
from tests.support.database import Database
from tests.support.sizes import FULL

KILLS = 200 if FULL else 6


@pytest.mark.pg("15", "16", "18")
def test_an_event_is_stored_as_given(db: Database) -> None:
    conn = db.connect()
    mine = uuid.uuid4()

    given = publish(conn, "orders.created", {"n": 1, "ü": [None]}, key="k", headers={"x": 1}, event_id=mine)
    plain = publish(conn, "orders.created")

    rows = db.rows("select id, topic, key, payload, headers, event_id, attempts from supervisor.outbox order by id")
    assert rows == [
        (given.id, "orders.created", "k", {"n": 1, "ü": [None]}, {"x": 1}, mine, 0),
        (plain.id, "orders.created", None, {}, {}, plain.event_id, 0),
    ]
    assert given.event_id == mine


async def test_async_and_sync_do_the_same(db: Database) -> None:
    async with await db.aconnect() as conn:
        one = await publish(conn, "t", {"a": 1}, key="k")
        many = await publish_many(conn, [NewEvent("t", {"a": n}, key="k") for n in range(3)])
    assert db.value("select array_agg(id order by id) from supervisor.outbox") == [one.id, *(each.id for each in many)]


@pytest.mark.pg("15", "18")
def test_a_bulk_is_that_many_single_calls(db: Database) -> None:
    conn = db.connect()
    mine = uuid.uuid4()
    answers = publish_many(
        conn,
        [
            NewEvent("a", {"n": 0}),
            NewEvent("b", '{"n": 1}', key='k"\\', headers={"h": "v"}, event_id=str(mine)),
            NewEvent("c", {"n": 2}, key="k"),
        ],
    )
    rows = db.rows("select id, event_id, topic, key, payload ->> 'n', headers from supervisor.outbox order by id")
    assert [(row[0], row[1]) for row in rows] == [(each.id, each.event_id) for each in answers]
    assert [row[2:] for row in rows] == [
        ("a", None, "0", {}), ("b", 'k"\\', "1", {"h": "v"}), ("c", "k", "2", {}),
    ]  # fmt: skip
    assert rows[1][1] == mine
    assert publish_many(conn, []) == []


def test_a_key_has_one_part_and_events_without_one_are_spread(db: Database) -> None:
    conn = db.connect()
    publish_many(conn, [NewEvent("t", key="k") for _ in range(20)])
    publish_many(conn, [NewEvent("t") for _ in range(640)])
    assert db.value("select count(distinct part)::int from supervisor.outbox where key = 'k'") == 1
    per_part = db.rows("select count(*)::int from supervisor.outbox where key is null group by part")
    assert per_part == [(10,)] * 64


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"topic": ""}, "topic"),
    ({"topic": "x" * 256}, "topic"),
    ({"topic": "a\nb"}, "topic"),
    ({"topic": 7}, "topic"),
    ({"key": ""}, "key"),
    ({"key": "k" * 1025}, "key"),
    ({"key": "\x00"}, "key"),
    ({"payload": {"a": float("nan")}}, "payload.a"),
    ({"payload": {"a": ["\ud800"]}}, "payload.a[0]"),
    ({"payload": [1]}, "payload"),
    ({"payload": {"a": "x" * (17 << 20)}}, "payload"),
    ({"headers": {"a b": "c"}}, "headers.a b"),
    ({"headers": {"a(b)": "c"}}, "headers.a(b)"),  # not at NATS
    ({"headers": {"x" * 101: "c"}}, f"headers.{'x' * 101}"),  # with a prefix not at RabbitMQ
    ({"headers": {"ce-": "c"}}, "headers.ce-"),
    ({"headers": {"a": {"b": 1}}}, "headers.a"),
    ({"headers": {"a": "1\r\nb: 2"}}, "headers.a"),
    ({"headers": {"ce-id": "1"}}, "headers.ce-id"),
    ({"event_id": "seven"}, "event_id"),
    ({"event_id": 7}, "event_id"),
    ({"schema": "a;b"}, "schema"),
]


def test_what_cannot_be_stored_is_refused_before_any_statement(db: Database) -> None:
    """The caller's transaction can still commit what it has."""
    conn = db.connect(autocommit=False)
    conn.execute("insert into effects (job_id, kind, attempt, pid) values (1, 'x', 1, 1)")
    for arguments, field in REFUSED:
        with pytest.raises(InvalidEvent) as refused:
            publish(conn, **{"topic": "t", **arguments})
        assert refused.value.field == field
    conn.commit()
    assert db.value("select count(*)::int from effects") == 1


def test_the_function_refuses_in_words(db: Database) -> None:
    for call, said in [
        ("publish('', '{}')", "topic must be 1 to 255 bytes long, not 0"),
        ("publish('t', '[]')", "payload must be a JSON object, not array"),
        ("publish('t', '{}', headers => '1')", "headers must be a JSON object, not number"),
        ("publish('t', '{}', key => repeat('x', 1025))", "key must be 1 to 1024 bytes long, not 1025"),
        ("""publish('t', '{}', headers => '{"a\\nb": 1}')""", "the names of headers must be 1 to 100 letters, digits"),
        ("""publish('t', '{}', headers => '{"a": 1, "b(c)": 1}')""", "the names of headers must be"),
        ("""publish('t', '{}', headers => '{"Ce-": 1}')""", "the names of headers must be"),
        (
            "publish('t', '{}', headers => jsonb_build_object('a', repeat('x', 65536)))",
            "headers must be at most 65536 bytes long, not 65537",
        ),
        ("""publish_many('[{"topic": "t"}, {"topic": ""}]')""", "events[1]: topic must be"),
        ("publish_many('{}')", "events must be a JSON array"),
    ]:
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=said.replace("[", r"\[").replace("]", r"\]")):
            db.execute(f"select * from supervisor.{call}")
    assert db.value("select count(*)::int from supervisor.outbox") == 0


def test_a_database_without_the_schema_is_named(blank_db: Database) -> None:
    with pytest.raises(SchemaMissing):
        publish(blank_db.connect(), "t")


def test_an_event_goes_with_its_transaction(db: Database) -> None:
    """A rolled-back savepoint takes its event with it; nothing is committed or closed by publishing."""
    conn = db.connect(autocommit=False)
    kept = publish(conn, "t", {"n": 1})
    with pytest.raises(RuntimeError), conn.transaction():
        publish(conn, "t", {"n": 2})
        raise RuntimeError
    assert db.value("select count(*)::int from supervisor.outbox") == 0
    conn.commit()
    assert db.rows("select id from supervisor.outbox") == [(kept.id,)]
    publish_many(conn, [NewEvent("t")])
    conn.rollback()
    assert db.value("select count(*)::int from supervisor.outbox") == 1


_CALLER = """
import sys, itertools, psycopg
from supervisor import publish
conn = psycopg.connect(sys.argv[1])
conn.execute("select set_config('synchronous_commit', 'on', false)")
conn.commit()
print("ready", flush=True)
for n in itertools.count():
    with conn.transaction():
        conn.execute("insert into effects (job_id, kind, attempt, pid) values (%s, 'row', 1, pg_backend_pid())", (n,))
        with conn.transaction():
            publish(conn, "t", {"n": n, "who": sys.argv[2]}, key="k")
"""


def test_killed_callers_leave_an_event_exactly_where_they_left_a_row(db: Database) -> None:
    """B49: SIGKILL at any point between the row and the event, in a nested savepoint, splits neither from the other."""
    rng = random.Random(49)
    for number in range(KILLS):
        caller = subprocess.Popen(
            [sys.executable, "-c", _CALLER, db.conninfo, str(number)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert caller.stdout is not None
            assert caller.stdout.readline() == "ready\n"
            with pytest.raises(subprocess.TimeoutExpired):
                caller.wait(rng.uniform(0.0, 0.02))
        finally:
            caller.send_signal(signal.SIGKILL)
            caller.communicate()
    db.wait_for("select count(*)::int from pg_stat_activity where application_name = '' and state <> 'idle'"
                " and datname = current_database()", 0)  # fmt: skip
    assert db.value("select count(*)::int from effects") > 0
    assert db.value("select count(*)::int from effects") == db.value("select count(*)::int from supervisor.outbox")
    assert db.value(
        "select count(*)::int from supervisor.outbox o where not exists"
        " (select from effects e where e.job_id = (o.payload ->> 'n')::bigint)"
    ) == 0  # fmt: skip


def test_publishing_notifies_only_while_an_idle_relay_waits(db: Database) -> None:
    conn, ears = db.connect(), db.connect()
    ears.execute('listen "supervisor.outbox"')
    publish(conn, "t")
    assert list(ears.notifies(timeout=0.2)) == []
    db.execute(
        "insert into supervisor.relay (id, name, host, pid, version, broker, state, waiting, expires_at)"
        " values (1, 'r', 'h', 1, '0', 'b', 'leading', true, now() + interval '1 hour')"
    )
    with conn.transaction():
        publish_many(conn, [NewEvent("t") for _ in range(100)])
    with pytest.raises(RuntimeError), conn.transaction():
        publish(conn, "t")
        raise RuntimeError
    assert [notice.payload for notice in ears.notifies(timeout=2, stop_after=1)] == ["added"]
    assert list(ears.notifies(timeout=0.2)) == []


async def test_writers_at_once_do_not_wait_for_each_other(db: Database) -> None:
    """Two open transactions publish under one key: neither is held up by the other."""
    async with await db.aconnect(autocommit=False) as first, await db.aconnect(autocommit=False) as second:
        async with asyncio.timeout(5):
            await publish(first, "t", key="k")
            await publish(second, "t", key="k")
            await second.commit()
            await first.commit()
    assert db.value("select count(distinct xid)::int from supervisor.outbox") == 2


def test_what_is_published_is_partitioned_by_day_and_goes_by_age(db: Database) -> None:
    tidy = "select supervisor.tidy_outbox(interval '1 day', interval '2 days', interval '3 days', 100)"
    assert db.value(tidy) == 0
    today = datetime.now(UTC).strftime("%Y%m%d")
    made = "select count(*)::int from pg_class where relname ~ '^outbox_sent_[0-9]+$'"
    assert db.value(made) == 3
    db.execute(
        "create table supervisor.outbox_sent_20200101 partition of supervisor.outbox_sent"
        " for values from ('2020-01-01 00:00:00+00') to ('2020-01-02 00:00:00+00')"
    )
    row = (
        "insert into supervisor.outbox_sent select n, {}, now(), 0, 't', null, gen_random_uuid()"
        " from generate_series(1, {}) n"
    )
    db.execute(row.format("now()", 5))
    db.execute(row.format("'2020-01-01 12:00:00+00'", 5))
    db.execute(row.format("'2021-01-01 12:00:00+00'", 250))
    db.execute(
        "insert into supervisor.inbox select 'c', n::text, now() - interval '3 days' from generate_series(1, 150) n"
    )
    db.execute("insert into supervisor.inbox values ('c', 'new')")
    assert db.value(f"select count(*)::int from supervisor.outbox_sent_{today}") == 5

    reader = db.connect(autocommit=False)
    reader.execute("select count(*) from supervisor.outbox_sent")
    assert db.value(tidy) == 200  # a reader holds up the drop and nothing else
    assert db.value(made) == 4
    reader.rollback()
    while db.value(tidy):
        pass
    assert db.value(made) == 3
    assert db.value("select count(*)::int from supervisor.outbox_sent") == 5
    assert db.rows("select event_id from supervisor.inbox") == [("new",)]


def test_an_event_carries_the_trace_of_its_publisher(db: Database) -> None:
    """What the caller names itself is left as it is; without a trace nothing is added."""
    conn = db.connect()
    tracer = TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("order") as span:
        publish(conn, "t", headers={"x": 1})
        publish_many(conn, [NewEvent("t", headers={"traceparent": "mine"})])
    publish(conn, "t")
    headers = [row[0] for row in db.rows("select headers from supervisor.outbox order by id")]
    within = span.get_span_context()
    trace = f"00-{within.trace_id:032x}-{within.span_id:016x}-{int(within.trace_flags):02x}"
    assert headers == [{"x": 1, "traceparent": trace}, {"traceparent": "mine"}, {}]
