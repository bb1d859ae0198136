"""Handlers that harm the process they run in: only their own job is charged, and the service goes on.

One that spoils its process for good costs it that worker, no more: what ran beside it is finished or put back
uncharged. One that is merely rude costs nothing.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import pytest

from supervisor import exits
from tests.support import proc
from tests.support.database import Database
from tests.support.jobs import enqueue, job
from tests.support.poison_handlers import MODULES
from tests.support.service import Service
from tests.support.sizes import within
from tests.support.waiting import wait_until

Start = Callable[..., Service]
NEIGHBOURS: Final = ("t.effect", "t.effect_sync", "f.transaction", "f.transaction_sync")


def run_neighbours(db: Database, rounds: int = 5) -> None:
    """Ordinary jobs of each sort run once and uncharged."""
    ids = [job_id for kind in NEIGHBOURS for job_id in enqueue(db, kind, count=rounds)]
    check_neighbours(db, ids)


def check_neighbours(db: Database, ids: list[int]) -> None:
    db.wait_for("select count(*)::int from supervisor.history where id = any(%s)", len(ids), 20, [ids])
    charged = db.rows("select id from supervisor.history where id = any(%s) and attempts + crashes > 1", [ids])
    assert charged == [], "neighbours are charged"
    effects = db.effects()
    assert [effects[job_id] for job_id in ids] == [1] * len(ids)


def ended(db: Database, job_id: int, deadline_s: float = 20.0) -> dict[str, Any]:
    """The job, once it is done or dead."""
    db.wait_for("select status in ('done', 'dead') from supervisor.jobs where id = %s", True, deadline_s, [job_id])
    return job(db, job_id)


def children_noted(db: Database) -> list[int]:
    return [int(note.split()[1]) for (note,) in db.rows("select note from effects where note like 'child %%'", [])]


def no_zombies(service: Service) -> bool:
    return [one for one in proc.everyone() if one.session == service.parent_pid and one.state == "Z"] == []


# -- rude, and no more ---------------------------------------------------------------------------

# Kind, payload, and what its error says; nothing if it is done.
RUDE: list[tuple[str, dict[str, Any], str | None]] = [
    ("p.zombies", {"count": 20}, None),
    ("p.signals", {}, None),
    ("p.sigchld", {}, None),
    ("p.print", {"megabytes": 2}, None),
    ("p.threads", {"count": 20}, None),
    ("p.policy", {}, None),
    ("p.own_loop", {}, None),
    ("p.stop_loop", {}, None),
    ("p.close_loop", {}, "RuntimeError: Cannot close a running event loop"),
    ("p.sore", {}, None),
    ("p.elsewhere", {}, None),
    ("p.recurse", {}, "RecursionError: maximum recursion depth exceeded"),
    ("p.no_memory", {}, "MemoryError"),
]


@pytest.mark.timeout(120)
def test_rude_handlers_cost_nobody_anything(db: Database, service: Start) -> None:
    """All in one worker, one after the other: it still works, drains when told to, and was never replaced.

    A handler that stopped the loop once ended its worker as the service's own fault, uncharged, for ever.
    """
    one = service(handlers=MODULES, processes=1, concurrency=4)
    workers = one.worker_pids()
    for kind, payload, text in RUDE:
        [rude] = enqueue(db, kind, payload, max_attempts=1)
        run_neighbours(db, 1)
        found = ended(db, rude)
        assert (found["status"], found["crashes"]) == ("done" if text is None else "dead", 0), (kind, found)
        assert text is None or text in found["last_error"], kind
        run_neighbours(db, 1)
        assert one.worker_pids() == workers, f"{kind} cost the worker"
    run_neighbours(db)
    assert one.events("handler.stop_ignored")
    assert one.events("worker.exited") == []
    [last] = enqueue(db, "t.sleep", {"seconds": 0.5})
    db.wait_for("select count(*)::int from effects where job_id = %s", 1, params=[last])
    assert one.stop() == exits.OK, "the drain is the parent's message, not a signal"
    assert job(db, last)["status"] == "done"
    assert one.events("worker.killed") == []


# -- children ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["p.fork", "p.fork_sync", "p.background"])
def test_children_that_hold_all_descriptors_hide_no_death_and_stop_no_stop(
    kind: str, db: Database, service: Start
) -> None:
    """Their copies of socket and pipes once kept readers from the end of file. Orphans are reaped when they end."""
    one = service(handlers=MODULES, processes=2)
    enqueue(db, kind, {"seconds": 60}, count=4)
    db.wait_for("select count(*)::int from supervisor.history", 4)
    for slot, pid in one.workers().items():
        readies = len(one.events("worker.ready", slot=slot))
        began = time.monotonic()
        proc.kill(pid)
        one.wait_event("worker.exited", slot=slot, pid=pid, code=-9)
        assert time.monotonic() - began < within(1, busy_s=8), "the death was noticed late"
        one.wait_event("worker.ready", slot=slot, count=readies + 1)
    run_neighbours(db)
    left = [process for process in one.processes() if process.name == "sleep"]
    orphans = [process.pid for process in left] or children_noted(db)
    assert len(orphans) == 4
    for pid in orphans[:2]:
        proc.kill(pid)
    wait_until(lambda: no_zombies(one), 5, "ended orphans are reaped")
    began = time.monotonic()
    one.send(signal.SIGTERM)
    wait_until(lambda: not one.alive, 10, "it stops though orphans live")
    for pid in orphans:
        proc.kill(pid)
    assert one.wait_exit() == exits.OK


def test_a_worker_that_forks_and_dies_is_noticed_at_once_and_charged(db: Database, service: Start) -> None:
    one = service(handlers=MODULES, processes=1, retry_base_s=0.01, restart_budget=1000)
    [bad] = enqueue(db, "p.fork_and_die", {"seconds": 60}, max_crashes=2)
    dead = ended(db, bad)
    assert (dead["attempts"], dead["crashes"], dead["reason"]) == (0, 2, "crashes")
    assert "SIGKILL" in dead["last_error"]
    gap = db.value(
        "select extract(epoch from %s::timestamptz - max(at))::float8 from effects where job_id = %s",
        [dead["finished_at"], bad],
    )
    assert gap < within(1.5, busy_s=10), f"the last death was dealt with after {gap:.1f} s"
    run_neighbours(db)
    for pid in children_noted(db):
        proc.kill(pid)
    assert one.stop() == exits.OK


# -- spoilt processes ------------------------------------------------------------------------------


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("kind", "first", "last"),
    [
        ("p.close_descriptors", 0, 2),
        ("p.close_descriptors", 0, 20),
        ("p.close_descriptors_sync", 0, 20),
        ("p.close_descriptors", 3, 1000),
    ],
)
def test_closing_descriptors_of_the_worker_costs_that_job_only(
    kind: str, first: int, last: int, db: Database, service: Start
) -> None:
    one = service(handlers=MODULES, processes=2, retry_base_s=0.01, restart_budget=1000)
    good = enqueue(db, "t.sleep", {"seconds": 0.3}, count=10)
    [bad] = enqueue(db, kind, {"first": first, "last": last}, max_attempts=2, max_crashes=2)
    good += enqueue(db, "t.effect", count=10)
    found = ended(db, bad, 40)
    db.wait_for("select count(*)::int from supervisor.history where id = any(%s)", 20, 20, [good])
    charged = db.rows("select id from supervisor.history where id = any(%s) and crashes > 0", [good])
    assert charged == []
    print(
        f">>> {kind} {first}-{last}: {found['status']} {found['attempts']} {found['crashes']} {found['last_error']!r}"
    )
    if found["status"] == "dead":
        assert found["reason"] in ("crashes", "attempts")
        assert found["last_error"]
    run_neighbours(db)
    assert one.stop() == exits.OK


def test_a_handler_that_cancels_every_task_costs_its_worker_and_no_more(db: Database, service: Start) -> None:
    """It once ended the worker as the service's own fault: uncharged, it came back for ever."""
    one = service(handlers=MODULES, processes=1, retry_base_s=0.01)
    for _ in range(3):
        [bad] = enqueue(db, "p.cancel_all", max_attempts=1)
        found = ended(db, bad)
        assert (found["status"], found["reason"], found["crashes"]) == ("dead", "attempts", 0)
        assert "CancelledError" in found["last_error"]
        run_neighbours(db)
    assert one.events("worker.failed") == []
    assert one.stop() == exits.OK


@pytest.mark.timeout(120)
def test_a_handler_that_breaks_the_workers_own_code_is_found_and_buried(db: Database, service: Start) -> None:
    """The worker fails by itself, not by a signal: what ran is suspect, and only what repeats it alone is charged."""
    one = service(handlers=MODULES, processes=2, retry_base_s=0.01, restart_budget=1000)
    good = enqueue(db, "t.sleep", {"seconds": 0.2}, count=10)
    [bad] = enqueue(db, "p.cancel_for_ever", max_crashes=2)
    found = ended(db, bad, 40)
    assert (found["status"], found["reason"], found["attempts"], found["crashes"]) == ("dead", "crashes", 0, 2)
    assert "it failed by itself" in found["last_error"]
    db.wait_for("select count(*)::int from supervisor.history where id = any(%s)", 10, 20, [good])
    assert db.value("select max(crashes) from supervisor.history") == 0
    run_neighbours(db)
    assert one.stop() == exits.OK


@pytest.mark.timeout(120)
def test_leaked_descriptors_cost_the_worker_and_not_its_neighbours(db: Database, service: Start) -> None:
    one = service(handlers=MODULES, processes=1, retry_base_s=0.01)
    [before] = one.worker_pids()
    [bad] = enqueue(db, "p.leak_descriptors", max_attempts=1)
    found = ended(db, bad)
    assert (found["status"], found["reason"]) == ("dead", "attempts")
    assert "OSError: [Errno 24] Too many open files" in found["last_error"]
    wait_until(lambda: one.worker_pids() not in ([], [before]), 10, "a fresh worker")
    assert one.events("worker.spent")
    run_neighbours(db)
    assert one.stop() == exits.OK


# -- what they leave in the database ---------------------------------------------------------------


def test_a_long_error_is_kept_short_and_readable(db: Database, service: Start) -> None:
    """1 MB of it, ten times, with a NUL and half a character, and a cause as long."""
    one = service(handlers=MODULES, processes=1, retry_base_s=0.01, retry_cap_s=0.02)
    [bad] = enqueue(db, "p.long_error", {"megabytes": 1}, max_attempts=12)
    dead = ended(db, bad, 30)
    assert (dead["reason"], dead["attempts"]) == ("attempts", 12)
    assert dead["last_error"].startswith("RuntimeError: é")
    assert "1000000 characters" in dead["last_error"]
    assert len(dead["last_error"]) <= 10_000
    assert len(dead["errors"]) == 10
    assert len(json.dumps(dead["errors"])) < 100_000
    assert all(len(line) < 20_000 for line in (json.dumps(event) for event in one.log))
    run_neighbours(db)
    assert one.stop() == exits.OK


def test_payloads_nested_without_end_are_dead_with_a_clear_text(db: Database, service: Start) -> None:
    """Written by plain SQL; the interpreter's stack is not theirs to use up."""
    one = service(handlers=MODULES, processes=1)
    workers = one.worker_pids()
    bad = []
    for depth in (1_000, 5_000):
        for kind in ("p.anything", "t.effect"):
            nested = '{"value": ' + "[" * depth + "]" * depth + "}"
            insert = "insert into supervisor.job (kind, payload) values (%s, %s) returning id"
            bad.append(db.value(insert, [kind, nested]))
    db.wait_for("select count(*)::int from supervisor.dead_letter", len(bad))
    rows = db.rows("select reason, crashes, last_error from supervisor.dead_letter")
    assert {row[:2] for row in rows} == {("payload", 0)}, rows
    assert all("recursion limit exceeded" in row[2] for row in rows), rows
    shown = subprocess.run(
        [sys.executable, "-m", "supervisor", "jobs", "show", str(bad[-1])],
        env=one.env, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert "nested too deeply to show" in shown.stdout
    run_neighbours(db)
    assert one.worker_pids() == workers
    assert one.stop() == exits.OK
