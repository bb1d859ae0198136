"""Jobs with keys, as running services keep their order and their limits: by count, whoever dies.

    20 processes add jobs of 50 keys --> two supervisors, whose workers are killed --> effects: who ran when

From what handlers and producers write by connections of their own it is known, without asking the service, whether
jobs of one key ever ran out of order or at one time, and whether any was lost.

Elsewhere: each move and each race by itself (tests/db/test_gates.py, tests/db/test_gate_races.py).
"""

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from tests.process.test_queues import kill
from tests.support.database import Database
from tests.support.gates import at_gate, gated
from tests.support.jobs import enqueue
from tests.support.key_producer import ASKED, KEYS
from tests.support.service import ROOT, Service
from tests.support.sizes import FULL, within
from tests.support.waiting import wait_until

Start = Callable[..., Service]
PRODUCERS = 20
EACH = 500 if FULL else 25
KILLS = 60 if FULL else 8
LIMITED = 2000 if FULL else 150
PACED = 600 if FULL else 60
QUICK = {"lease_s": 3.0, "reap_every_s": 0.5, "retry_base_s": 0.05, "processes": 3, "concurrency": 5}
Report = Callable[[str], None]


@contextmanager
def killing(db: Database, services: list[Service], most: int, every_s: float) -> Iterator[list[int]]:
    """SIGKILL workers of *services* meanwhile, one after the other, each of a living process."""
    stop = threading.Event()
    killed: list[int] = []
    rng = random.Random(7)
    watcher = db.connect()

    def work() -> None:
        while len(killed) < most and not stop.wait(every_s):
            pids = [pid for service in services for pid in service.worker_pids()]
            if pids:
                killed.append(rng.choice(pids))
                watcher.execute(
                    "insert into effects (job_id, kind, attempt, pid, note) values (0, '', 0, %s, 'killed')",
                    [killed[-1]],
                )
                kill(db, killed[-1])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join(30)


def most_of_a_key_at_once(db: Database) -> int:
    """The most jobs of one key that surely ran at one time: from a start to its end, or its worker's."""
    most = db.value(
        "with run as materialized ("
        "  select a.key, s.at as began, coalesce("
        "      min(e.at) filter (where e.note = 'done'),"
        "      min(greatest(e.at, s.at)) filter (where e.note = 'killed'), 'infinity') as ended"
        "    from effects s join asked a on a.job_id = s.job_id"
        "    left join effects e on e.pid = s.pid"
        "     and (e.note = 'killed' or (e.note = 'done' and e.job_id = s.job_id and e.at > s.at))"
        "   where s.note = 'start' group by a.key, s.job_id, s.pid, s.at)"
        " select max((select count(*) from run other"
        "              where other.key = run.key and other.began <= run.began and other.ended > run.began))::int"
        "   from run"
    )
    return int(most)


def out_of_order(db: Database) -> int:
    """Pairs of one key where the one was added after the other's commit, and began before that one's last end."""
    db.execute(
        "create table ran as select a.key, a.job_id, a.began, a.committed, min(e.at) as first, max(e.at) as last"
        " from asked a join effects e using (job_id) group by 1, 2, 3, 4"
    )
    db.execute("create index on ran (key)")
    db.execute("analyze ran")
    return int(
        db.value(
            "select count(*)::int from ran x join ran y on y.key = x.key"
            " where x.committed < y.began and (y.first < x.last or y.job_id < x.job_id)"
        )
    )


@pytest.mark.timeout(1800 if FULL else 240)
def test_jobs_of_a_key_run_in_order_and_one_at_a_time_whoever_adds_them_and_whoever_dies(
    db: Database, service: Start, report: Report
) -> None:
    """20 processes, 50 keys, two supervisors, SIGKILLs of workers; some transactions stay open, some are undone."""
    db.execute(ASKED)
    services = [service(name=name, **QUICK) for name in ("one", "two")]
    began = time.monotonic()
    with killing(db, services, KILLS, 0.5) as killed:
        producers = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.key_producer", db.conninfo, str(number), str(EACH), "1"], cwd=ROOT
            )
            for number in range(PRODUCERS)
        ]
        try:
            assert [producer.wait(600) for producer in producers] == [0] * PRODUCERS
        finally:
            for producer in producers:
                producer.kill()
        jobs = PRODUCERS * EACH
        db.wait_for("select count(*)::int from supervisor.history", jobs, 600 if FULL else 120)
    took = time.monotonic() - began
    assert db.value("select count(*)::int from asked") == jobs
    assert db.value("select count(distinct key)::int from asked") == KEYS
    assert db.statuses() == {"done": jobs}
    assert (
        db.value("select count(*)::int from asked where job_id not in (select job_id from effects where note = 'done')")
        == 0
    )
    assert out_of_order(db) == 0
    assert most_of_a_key_at_once(db) == 1
    assert killed
    assert db.value("select count(*)::int from supervisor.gated") == 0
    report(
        f"{jobs} jobs of {KEYS} keys by {PRODUCERS} processes, {len(killed)} kills: in order; {jobs / took:.0f} jobs/s"
    )


@pytest.mark.timeout(900 if FULL else 180)
def test_a_key_never_has_more_than_its_limit_running(db: Database, service: Start, report: Report) -> None:
    """Five keys with limits 1 to 3, failures and kills: by count in the table of starts and ends."""
    db.execute(ASKED)
    db.execute("alter table supervisor.job alter column max_crashes set default 1000")
    services = [service(name=name, **QUICK) for name in ("one", "two")]
    conn = db.connect()
    with killing(db, services, KILLS, 0.4) as killed:
        for number in range(LIMITED):
            key = number % 5
            if number % 7 == 0:
                job = gated(conn, kind="t.fail", payload={"times": 1}, concurrency=(f"c {key}", 1 + key % 3))
            else:
                job = gated(conn, kind="t.sleep", payload={"seconds": 0.03}, concurrency=(f"c {key}", 1 + key % 3))
            conn.execute("insert into asked values (%s, %s, 0, now(), now())", [job, f"c {key}"])
        db.wait_for("select count(*)::int from supervisor.history", LIMITED, 600 if FULL else 120)
    assert db.statuses() == {"done": LIMITED}
    for limit in (1, 2, 3):
        keys = [f"c {key}" for key in range(5) if 1 + key % 3 == limit]
        db.execute("create table if not exists every_asked as select * from asked")
        db.execute("truncate asked")
        db.execute("insert into asked select * from every_asked where key = any(%s)", [keys])
        assert most_of_a_key_at_once(db) == limit, "neither more, nor was the limit never reached"
    assert killed
    report(f"{LIMITED} jobs of 5 keys with limits 1 to 3, {len(killed)} kills: never more, and as many")


@pytest.mark.timeout(900 if FULL else 120)
def test_starts_of_a_key_are_never_closer_than_its_rate(db: Database, service: Start, report: Report) -> None:
    """Every claim is noted by a trigger; retries and kills are starts like others."""
    db.execute(
        "create table claimed (key text, at timestamptz);"
        "create function note_claim() returns trigger language plpgsql as $$ begin"
        " insert into claimed select g.rate_key, new.started_at from supervisor.gated g where g.job_id = new.id;"
        " return null; end $$;"
        "create trigger note_claim after update on supervisor.job for each row"
        " when (new.lease is not null and old.lease is null) execute function note_claim()"
    )
    db.execute("alter table supervisor.job alter column max_crashes set default 1000")
    services = [service(name=name, **QUICK) for name in ("one", "two")]
    conn = db.connect()
    rates = {"slow": (5, timedelta(seconds=1)), "fast": (30, timedelta(seconds=1))}
    began = time.monotonic()
    with killing(db, services, KILLS // 2, 0.5) as killed:
        for number in range(PACED):
            key = "slow" if number % 4 == 0 else "fast"
            kind, payload = ("t.fail", {"times": 1}) if number % 10 == 0 else ("t.sleep", {"seconds": 0.05})
            gated(conn, kind=kind, payload=payload, rate=(key, *rates[key]))
        db.wait_for("select count(*)::int from supervisor.history", PACED, 600 if FULL else 60)
    took = time.monotonic() - began
    gaps = db.rows(
        "select key, min(gap)::float8, count(*) from (select key,"
        "   extract(epoch from at - lag(at) over (partition by key order by at)) as gap from claimed) x"
        " group by key order by key"
    )
    assert [(key, gap >= rates[key][1].total_seconds() / rates[key][0]) for key, gap, _ in gaps] == [
        ("fast", True), ("slow", True)
    ]  # fmt: skip
    starts = {key: count for key, _, count in gaps}
    assert starts["slow"] / took > 0.5 * 5 or starts["fast"] / took > 0.5 * 30, "a rate is kept, not a crawl"
    report(f"starts {starts} in {took:.1f} s, {len(killed)} kills; least gaps {[row[:2] for row in gaps]}")


def test_what_waits_is_let_in_at_once_on_an_idle_system(db: Database, service: Start, report: Report) -> None:
    """Told by notification: neither polls nor ticks are waited for."""
    service(processes=1, poll_every_s=60.0)
    db.wait_for("select count(*)::int from supervisor.waiting", 1)
    conn = db.connect()
    took = []
    for number in range(20):
        began = time.monotonic()
        job = gated(conn, kind="t.effect", order=f"o {number}")
        wait_until(lambda job=job: db.effects().get(job) == 1, 5, "it ran")  # type: ignore[misc]
        took.append(time.monotonic() - began)
    took.sort()
    report(f"added with a key, ran: median {took[10] * 1000:.0f} ms, most {took[-1] * 1000:.0f} ms")
    assert took[10] < within(0.5, busy_s=3)


def test_a_child_runs_after_its_parents_and_a_delayed_job_at_its_time(db: Database, service: Start) -> None:
    service(processes=2, poll_every_s=60.0)
    conn = db.connect()
    parents = enqueue(db, "t.sleep", {"seconds": 0.3}, count=3)
    child = gated(conn, kind="t.effect", after=parents)
    grandchild = gated(conn, kind="t.effect", after=[child])
    late = gated(conn, kind="t.effect", delay_s=1.0, concurrency=("c", 1))
    assert at_gate(db, grandchild) == "parents"
    db.wait_for("select count(*)::int from supervisor.history", 6, 20)
    ends: dict[int, Any] = dict(db.rows("select job_id, max(at) from effects where note = 'done' group by 1"))
    assert max(ends[parent] for parent in parents) < ends[child] < ends[grandchild]
    assert ends[late] >= db.value("select run_at from supervisor.history where id = %s", [late])
