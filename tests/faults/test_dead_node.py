"""A machine is gone with everything on it; what it ran is found by its leases, not by names or rows of workers."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from supervisor.client import enqueue
from tests.support import proc
from tests.support.database import Database
from tests.support.fault_handlers import MODULES
from tests.support.service import Service
from tests.support.sizes import within
from tests.support.waiting import wait_until

Start = Callable[..., Service]
LEASE_S = 3.0
REAP_S = 0.5
NOISE_S = within(2.0, busy_s=10.0)

SETTINGS: dict[str, Any] = {
    "handlers": MODULES,
    "name": "pod-0",
    "processes": 2,
    "concurrency": 10,
    "lease_s": LEASE_S,
    "reap_every_s": REAP_S,
    "retry_base_s": 0.01,
}


def kill_everything(service: Service) -> None:
    """End every process of *service* at once, as a power cut does."""

    def gone() -> bool:
        for process in service.processes():
            proc.kill(process.pid)
        return not service.processes() and not service.alive

    wait_until(gone, 10, "no process is left")


@pytest.mark.parametrize("rows_too", [False, True], ids=["killed", "killed_and_its_rows_deleted"])
def test_jobs_of_a_dead_node_are_taken_up_within_lease_and_reaper_interval(
    db: Database, service: Start, rows_too: bool
) -> None:
    """B15: a pod comes back under its own name; also when every row about workers was cleaned away before."""
    first = service(**SETTINGS)
    conn = db.connect()
    jobs = [enqueue(conn, "t.sleep", {"seconds": 1.0 if n % 2 else 3600.0}).id for n in range(10)]
    long = [job for n, job in enumerate(jobs) if n % 2 == 0]
    db.wait_for("select count(*) from supervisor.jobs where status = 'running'", 10, 10)
    db.wait_for("select count(*) from effects where note = 'start'", 10, 10)
    if rows_too:
        db.execute("delete from supervisor.session")
        db.execute("delete from supervisor.parent")
        db.execute("delete from supervisor.waiting")
    kill_everything(first)
    died = time.monotonic()
    db.execute("update supervisor.job set payload = '{\"seconds\": 0}'")
    held = [row[0] for row in db.rows("select id from supervisor.jobs where status <> 'done'")]
    assert set(long) <= set(held)

    second = service(**SETTINGS)
    db.wait_for("select count(*) from supervisor.jobs where status = 'done'", 10, 20)
    took = time.monotonic() - died
    print(f">>> {len(held)} jobs done {took:.1f} s after the death")
    assert took < LEASE_S + REAP_S + NOISE_S
    rows = db.rows("select attempts, crashes from supervisor.jobs where id = any(%s)", [held])
    assert set(rows) == {(1, 1)}, "one crash each, for the lost lease, and no attempt"
    assert set(db.effects("start").values()) <= {1, 2}
    wait_until(lambda: second.metric("supervisor_reaped_total") == len(held), 5, "the reaped are counted")
    assert second.stop() == 0


def test_a_living_service_whose_rows_are_deleted_goes_on(db: Database, service: Start) -> None:
    """B15: whoever cleans up workers' rows by hand costs the running jobs a second run, never a job."""
    one = service(**{**SETTINGS, "processes": 1})
    conn = db.connect()
    jobs = [enqueue(conn, "f.slow", {"seconds": 2.0}).id for _ in range(5)]
    db.wait_for("select count(*) from effects where note = 'start'", 5, 10)
    db.execute("delete from supervisor.session")
    db.execute("delete from supervisor.parent")
    db.wait_for("select count(*) from supervisor.jobs where status = 'done'", 5, 30)
    assert db.rows("select max(crashes) from supervisor.jobs") == [(1,)]
    runs = sum(db.effects("start").values())
    print(f">>> {runs} runs of {len(jobs)} jobs")
    wait_until(lambda: one.metric("supervisor_leases_lost_total") == runs - len(jobs), 5, "each second run is told")
    assert one.metric("supervisor_leases_lost_total") == 5
    again = enqueue(conn, "t.effect").id
    db.wait_for("select status from supervisor.jobs where id = %s", "done", 10, [again])
    assert db.value("select count(*) from supervisor.parent") == 1
    assert one.stop() == 0
