"""Counting what waits at gates: what is said is true, and it reads no more than its limit however many wait."""

import time
from typing import Any

import pytest

from supervisor.db import gates, health, overview
from supervisor.db.gates import Gate
from supervisor.db.statements import statement
from tests.support.database import Database
from tests.support.gates import MINUTE, at_gate, bring_notes, gated, look
from tests.support.jobs import enqueue

MANY = 30_000


def many(db: Database, gate: int, count: int = MANY) -> None:
    """So many jobs at one gate, as an enqueue leaves them; at gate 1 each has a parent of its own."""
    columns = {
        1: ("", ""), 2: ("ordering_key", "'k' || n"), 3: ("concurrency_key, concurrency_limit", "'k', 1"),
        4: ("rate_key, rate_limit, rate_period", "'k', 1, interval '1 s'"),
    }[gate]  # fmt: skip
    names, values = (f", {part}" if part else "" for part in columns)
    db.execute(
        "with made as (insert into supervisor.job (kind, run_at, gated)"
        f" select 'k', supervisor.parked_at(), true from generate_series(1, {count}) returning id),"
        " linked as (insert into supervisor.job_after (parent, child) select id + 1000000, id from made"
        f" where {gate} = 1)"
        f" insert into supervisor.gated (job_id, gate, due_at{names})"
        f" select id, {gate}, now() - interval '1 minute'{values} from (select id, id as n from made) x"
    )


async def test_each_gate_has_its_count_and_the_age_of_the_first(db: Database) -> None:
    conn = db.connect()
    assert gates.waiting(conn, db.schema) == gates.Gates(dict.fromkeys(gates.GATES, Gate(0, 0.0)), 0.0)
    parents = enqueue(db, "k", count=300, delay=3600)
    gated(conn, after=parents)
    gated(conn, after=parents[:1])
    for _ in range(3):
        gated(conn, order="a")
        gated(conn, concurrency=("t", 2))
        gated(conn, rate=("r", 1, MINUTE), delay_s=3600)
    look(conn)
    db.execute("update supervisor.gated set due_at = now() - interval '50 s' where gate = 2")
    db.execute("update supervisor.gated set due_at = now() - interval '90 s' where gate = 1 and job_id % 2 = 0")
    found = gates.waiting(conn, db.schema)
    assert found is not None
    assert {name: one.jobs for name, one in found.by_gate.items()} == {
        "parents": 2, "order": 2, "concurrency": 1, "rate": 3,
    }  # fmt: skip
    assert 80 < found.by_gate["parents"].oldest_s < 120
    assert 40 < found.by_gate["order"].oldest_s < 80
    assert found.by_gate["rate"].oldest_s == 0, "they are not due yet"
    async with await db.aconnect() as aconn:
        again = await gates.waiting_async(aconn, db.schema)
    assert again is not None
    assert again.by_gate.keys() == found.by_gate.keys()


def test_a_note_that_nobody_looks_at_is_told(db: Database) -> None:
    conn = db.connect()
    gated(conn, order="a")
    bring_notes(db)
    db.execute("update supervisor.gate_note set at = at - interval '2 minutes'")
    found = gates.waiting(conn, db.schema)
    assert found is not None
    assert 110 < found.late_s < 150
    look(conn)
    found = gates.waiting(conn, db.schema)
    assert found is not None
    assert found.late_s == 0


def rows_read(plan: dict[str, Any], tables: frozenset[str]) -> int:
    """Rows of these tables that a plan has read; fails on a scan of all of one."""
    total = 0
    if plan.get("Relation Name") in tables:
        assert plan["Node Type"].startswith("Index"), (plan["Node Type"], plan["Relation Name"])
        total = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    return round(total) + sum(rows_read(child, tables) for child in plan.get("Plans", []))


@pytest.mark.parametrize("statistics", ["absent", "fresh"])
def test_counting_reads_no_more_than_its_limit_however_many_wait(db: Database, statistics: str) -> None:
    for table in ("job", "gated", "job_after"):
        db.execute(f"alter table supervisor.{table} set (autovacuum_enabled = off)")
    for gate in (1, 2, 3, 4):
        many(db, gate)
    db.execute("insert into supervisor.lane (queue, priority) values ('default', 0) on conflict do nothing")
    if statistics == "fresh":
        db.execute("analyze supervisor.job, supervisor.gated, supervisor.job_after")
    limit = 1000
    tables = frozenset({"job", "gated", "job_after", "gate_note"})
    with db.connect(autocommit=False) as conn:
        conn.execute(overview.PLANS)
        for name, most in (("gates", 6 * limit), ("waiting_depths", limit), ("lane_depths", 0)):
            asked = b"explain (analyze, format json) " + statement(name, "supervisor")
            [[[answer]]] = conn.execute(asked, {"limit": limit}).fetchall()
            assert rows_read(answer["Plan"], tables) <= most + 10, name
    began = time.monotonic()
    found = gates.waiting(db.connect(), db.schema)
    took = time.monotonic() - began
    assert found is not None
    assert all(one.jobs == gates.MOST_COUNTED and one.oldest_s > 50 for one in found.by_gate.values())
    assert took < 2


async def test_jobs_at_gates_are_told_by_queue_and_are_not_scheduled(db: Database) -> None:
    conn = db.connect()
    for _ in range(3):
        gated(conn, order="a", queue="mail")
    enqueue(db, "k", queue="mail", delay=3600)
    look(conn)
    [depth] = overview.depths(conn, db.schema)
    assert (depth.waiting, depth.scheduled, depth.due) == (2, 1, 1)
    [capped] = overview.depths(conn, db.schema, most=1)
    assert (capped.waiting, capped.at_least) == (1, ["waiting"])
    async with await db.aconnect() as aconn:
        [metric] = (await health.depths(aconn, db.schema)).queues
    assert (metric.waiting, metric.scheduled, metric.due) == (2, 1, 1)


def test_what_takes_too_long_to_count_is_not_known(db: Database) -> None:
    """Another's lock stands for dead rows without end: nothing is said, and not that nothing waits."""
    gated(db.connect(), order="a")
    with db.connect(autocommit=False) as other:
        other.execute("lock table supervisor.gated in access exclusive mode")
        assert gates.waiting(db.connect(), db.schema, patience_s=0.2) is None
    found = gates.waiting(db.connect(), db.schema)
    assert found is not None
    assert found.by_gate["order"].jobs == 1


def test_one_job_says_what_it_waits_for_at_each_gate(db: Database) -> None:
    conn = db.connect()
    parents = enqueue(db, "k", count=3, delay=3600)
    every = gated(conn, after=parents, order="a", concurrency=("t", 1), rate=("r", 1, MINUTE), failed="run")
    first, second = gated(conn, order="a"), gated(conn, order="a")
    look(conn)
    waits = gates.of_job(conn, db.schema, every)
    assert waits is not None
    assert waits.words == "jobs that it comes after"
    assert waits.whom == ", ".join(f"job {one} (queued)" for one in parents)
    assert waits.parents == [[one, "queued", "run"] for one in parents]
    assert (waits.ordering_key, waits.concurrency_limit, waits.rate_period_s) == ("a", 1, 60.0)
    behind = gates.of_job(conn, db.schema, second)
    assert behind is not None
    assert (behind.words, behind.ahead) == ("its turn in its ordering key: none waits before it", 0)
    assert behind.whom == f"job {first} has the key"
    holder = gates.of_job(conn, db.schema, first)
    assert holder is not None
    assert (holder.words, holder.behind, holder.holds) == (None, 1, False)
    [of_parent] = [gates.of_job(conn, db.schema, parents[0])]
    assert of_parent is not None
    assert (of_parent.words, of_parent.children) == (None, [every])
    db.rows("select supervisor.cancel_job(%s)", [parents])
    look(conn)
    assert at_gate(db, every) == "order"
    [plain] = enqueue(db, "k")
    assert gates.of_job(conn, db.schema, plain) is None
    assert gates.of_job(conn, db.schema, 10**12) is None
