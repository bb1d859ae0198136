"""Much of anything, and numbers at their end: bounded, and the rest goes on as before."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor import exits
from supervisor.client import enqueue, enqueue_many
from supervisor.newjob import NewJob
from tests.support import proc
from tests.support.database import Database
from tests.support.fault_handlers import MODULES
from tests.support.jobs import job
from tests.support.service import Service
from tests.support.sizes import FULL, within
from tests.support.waiting import wait_until

QUEUES = 5_000 if FULL else 1_000
UNKNOWN = 100_000 if FULL else 10_000
MB = 2**20

Start = Callable[..., Service]


def rss_mb(pid: int) -> float:
    found = proc.look(pid)
    assert found is not None
    return found.rss_bytes / MB


def peak_mb(pid: int) -> float:
    """The most memory it ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def cpu_s(pids: list[int]) -> float:
    return sum(found.cpu_s for pid in pids if (found := proc.look(pid)))


def command(one: Service, *words: str) -> Any:
    """What the command line says, as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", *words, "--json"],
        env=one.env, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# -- long payloads -------------------------------------------------------------------------------


@pytest.mark.timeout(180)
def test_payloads_of_10_mb_run_beside_small_ones(db: Database, service: Start) -> None:
    """B20, B26: twelve of them, by the client and by plain SQL; memory is given back, or at least bounded."""
    one = service(handlers=MODULES, processes=1, concurrency=4, prefetch=0)
    [worker] = one.worker_pids()
    before = rss_mb(worker)
    conn = db.connect()
    text = "x" * (10 * MB)
    big = [enqueue(conn, "f.measure", {"text": text}).id for _ in range(6)]
    by_sql = "select id from supervisor.enqueue('f.measure', jsonb_build_object('text', repeat('y', %s)))"
    big += [db.value(by_sql, [10 * MB]) for _ in range(6)]
    small = [row.id for row in enqueue_many(conn, [NewJob("t.effect")] * 50)]
    db.wait_for("select count(*)::int from supervisor.history", 62, 60)
    notes = db.rows("select distinct note from effects where job_id = any(%s)", [big])
    assert notes == [(f"{10 * MB} characters",)]
    assert set(db.effects()) == {*big, *small}
    grown = peak_mb(worker) - before
    print(f">>> the worker grew by {grown:.0f} MB at most; the parent has {peak_mb(one.parent_pid):.0f} MB")
    assert grown < 400
    assert peak_mb(one.parent_pid) < 150
    assert one.stop() == exits.OK


# -- many queues ---------------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_thousands_of_queues_all_run_and_cost_little_afterwards(db: Database, service: Start) -> None:
    """Jobs in each, some announced and some not; then idle, and a job in one of them starts at once."""
    one = service(handlers=MODULES, processes=2, concurrency=10)
    pids = [one.parent_pid, *one.worker_pids()]
    before = {pid: rss_mb(pid) for pid in pids}
    conn = db.connect()
    began = time.monotonic()
    enqueue_many(conn, [NewJob("t.effect", queue=f"tenant-{n}") for n in range(QUEUES)])
    db.wait_for("select count(*)::int from supervisor.history", QUEUES, 240)
    print(f">>> {QUEUES} queues ran in {time.monotonic() - began:.1f} s")
    assert set(db.effects("done").values()) == {1}
    db.wait_for("select count(*)::int from supervisor.lane", QUEUES, 30)
    grown = {pid: rss_mb(pid) - before[pid] for pid in pids}
    print(f">>> grown by {[round(mb) for mb in grown.values()]} MB")
    assert max(grown.values()) < 100

    spent, since = cpu_s(pids), time.monotonic()
    time.sleep(5 if FULL else 2)  # the cost of doing nothing is measured, not waited for
    share = (cpu_s(pids) - spent) / (time.monotonic() - since)
    print(f">>> idle, parent and workers use {share:.2f} of a CPU")
    assert share < 0.5
    latencies = []
    for n in range(10):
        sent = time.monotonic()
        job_id = enqueue(conn, "t.effect", {}, queue=f"tenant-{n * 7}").id
        db.wait_for("select count(*)::int from effects where job_id = %s", 1, 10, [job_id])
        latencies.append(time.monotonic() - sent)
    latencies.sort()
    print(f">>> a job in one of them: median {latencies[5] * 1000:.0f} ms, max {latencies[-1] * 1000:.0f} ms")
    assert latencies[5] < within(1, busy_s=4)
    assert one.events("tend.failed") == one.events("tend.refused") == one.events("database.unreachable") == []
    assert one.stop() == exits.OK


# -- kinds nobody knows --------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_a_flood_of_an_unknown_kind_does_not_hold_up_the_known_ones(db: Database, service: Start) -> None:
    """B21: put back ever more rarely, uncharged, counted; known jobs behind all of them start soon."""
    one = service(handlers=MODULES, processes=2, concurrency=10)
    pids = one.worker_pids()
    db.execute(f"insert into supervisor.job (kind) select 'f.nobody' from generate_series(1, {UNKNOWN})")
    conn = db.connect()
    worst = 0.0
    until = time.monotonic() + (60 if FULL else 4)
    good = []
    while time.monotonic() < until:
        sent = time.monotonic()
        job_id = enqueue(conn, "t.effect", {}).id
        good.append(job_id)
        db.wait_for("select count(*)::int from effects where job_id = %s", 1, 60, [job_id])
        worst = max(worst, time.monotonic() - sent)
        time.sleep(0.1)
    print(f">>> {len(good)} known jobs among {UNKNOWN} unknown ones: worst wait {worst:.2f} s")
    db.wait_for("select count(*)::int from supervisor.job where unknown_since is null", 0, 120)
    assert worst < within(10, busy_s=8), "put back one by one they would take half a minute"
    charged = db.rows("select id from supervisor.job where lease is null and attempts + crashes > 0")
    assert charged == []
    wait_until(lambda: one.metric("supervisor_unknown_kinds_total") >= UNKNOWN, 10, "each is counted")
    # How often each comes back falls: half as old, half as long.
    puts = one.metric("supervisor_unknown_kinds_total") / UNKNOWN
    age = db.value("select extract(epoch from clock_timestamp() - min(unknown_since))::float8 from supervisor.job")
    print(f">>> put back {puts:.1f} times each in {age:.0f} s")
    assert puts < 12
    assert one.worker_pids() == pids
    assert max(rss_mb(pid) for pid in pids) < 200
    charged = db.rows("select id from supervisor.history where attempts + crashes > 1")
    assert charged == []
    assert one.stop() == exits.OK


# -- numbers at their end ------------------------------------------------------------------------

IDS = [2**31 - 1, 2**31, 2**32 + 1, 2**53 + 1, 2**63 - 3, 2**63 - 2, 2**63 - 1]


def insert(db: Database, job_id: int, kind: str, payload: dict[str, Any] | None = None, **columns: Any) -> None:
    columns = {"id": job_id, "kind": kind, "payload": json.dumps(payload or {}), **columns}
    marks = ", ".join(f"%({name})s" for name in columns)
    db.execute(f"insert into supervisor.job ({', '.join(columns)}) values ({marks})", columns)


@pytest.mark.timeout(120)
def test_ids_of_any_size_go_through_everything(db: Database, service: Start) -> None:
    """Run, retried, dead, crashed, released by a stop, shown, cancelled, put back: above 2^31 and up to 2^63 - 1."""
    one = service(handlers=MODULES, processes=1, retry_base_s=0.01, restart_budget=1000)
    for job_id in IDS:
        insert(db, job_id, "t.effect")
    db.wait_for("select count(*)::int from supervisor.history", len(IDS))
    assert db.effects("done") == dict.fromkeys(IDS, 1)
    db.execute("truncate supervisor.history; truncate effects")

    for job_id in IDS:
        insert(db, job_id, "t.fail", {"times": 1})
    db.wait_for("select count(*)::int from supervisor.history where attempts = 2", len(IDS))
    db.execute("truncate supervisor.history; truncate effects")

    for job_id in IDS:
        insert(db, job_id, "t.fail" if job_id % 2 else "t.exit", max_attempts=2, max_crashes=2)
    db.wait_for("select count(*)::int from supervisor.dead_letter", len(IDS), 30)
    for job_id in IDS:
        dead = job(db, job_id)
        assert (dead["id"], dead["status"]) == (job_id, "dead")
        assert (dead["attempts"], dead["crashes"]) == ((2, 0) if job_id % 2 else (0, 2))
    assert command(one, "jobs", "show", str(2**63 - 1))["id"] == 2**63 - 1
    page = command(one, "jobs", "list", "--status", "dead")
    assert [row["id"] for row in page["jobs"]] == sorted(IDS, reverse=True)
    page = command(one, "jobs", "list", "--before", str(2**53 + 1), "--limit", "2")
    assert [row["id"] for row in page["jobs"]] == [2**32 + 1, 2**31]
    db.execute("update supervisor.dead_letter set kind = 't.effect'")
    command(one, "jobs", "retry", *map(str, IDS))
    db.wait_for("select count(*)::int from supervisor.history", len(IDS))
    db.execute("truncate supervisor.history; truncate effects")

    for job_id in IDS[:-1]:
        insert(db, job_id, "t.sleep", {"seconds": 600.0})
    insert(db, IDS[-1], "t.effect", run_at="2100-01-01")
    db.wait_for("select count(*)::int from effects where note = 'start'", len(IDS) - 1)
    command(one, "jobs", "cancel", str(IDS[-2]), str(IDS[-1]))
    db.wait_for("select count(*)::int from supervisor.dead_letter where status = 'cancelled'", 2)
    one.send(signal.SIGTERM)
    one.send(signal.SIGINT)
    assert one.wait_exit() == exits.CUT
    assert db.statuses() == {"queued": len(IDS) - 2, "cancelled": 2}
    for job_id in IDS[:-2]:
        assert (job(db, job_id)["attempts"], job(db, job_id)["crashes"]) == (0, 0)


# -- times without end ---------------------------------------------------------------------------


def test_the_earliest_and_the_latest_times_stop_nobody(db: Database, service: Start) -> None:
    """At the table's bounds they run or wait; what cannot be read is not taken (tests/db/test_bounds.py)."""
    one = service(handlers=MODULES, processes=1)
    insert(db, 1, "t.effect", run_at="1970-01-01 00:00:00+00", created_at="1970-01-01 00:00:00+00")
    insert(db, 2, "t.effect", run_at="9999-12-31 00:00:00+00")
    insert(db, 3, "t.effect", created_at="9999-12-31 00:00:00+00", timeout="178000000 years")
    insert(db, 4, "t.effect")
    db.wait_for("select count(*)::int from supervisor.history", 3)
    assert set(db.effects()) == {1, 3, 4}
    assert len(command(one, "jobs", "list")["jobs"]) == 4
    command(one, "status")
    assert one.get("/metrics")[0] == 200
    assert [event for event in one.log if event["event"].endswith((".refused", ".failed", ".unreachable"))] == []
    assert one.stop() == exits.OK
