"""A run that lost its lease changes nothing, and its code is told to stop."""

import signal
from collections.abc import Callable

import pytest

from supervisor.client import enqueue
from tests.support import proc
from tests.support.database import Database
from tests.support.fault_handlers import MODULES
from tests.support.service import Service
from tests.support.waiting import wait_until

Start = Callable[..., Service]
KEPT = 30.0  # s; the lease of whoever takes over, which a busy machine must not cost it


def freeze(service: Service) -> list[int]:
    """Stop every process of *service*, as a suspended machine does; their pids."""
    pids = [process.pid for process in service.processes()]
    for pid in pids:
        proc.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(found.state == "T" for pid in pids if (found := proc.look(pid))), 5, "all are stopped")
    return pids


def thaw(pids: list[int]) -> None:
    for pid in pids:
        proc.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("kind", ["f.slow", "f.slow_sync"])
def test_a_run_that_lost_its_lease_is_told_to_stop_and_changes_nothing(db: Database, service: Start, kind: str) -> None:
    """B14: A is stopped until B has taken its job over and done it; then A goes on under a new session.

    Concurrency 1 without prefetch: once A, with no hand free, learned of it only when its handler ended.
    """
    settings = {"handlers": MODULES, "processes": 1, "concurrency": 1, "prefetch": 0, "lease_s": 2, "retry_base_s": 0.1}
    first = service(**settings, name="pod-0")
    conn = db.connect()
    job = enqueue(conn, kind, {"seconds": 20}).id
    db.wait_for("select count(*) from effects where note = 'start'", 1, 10)
    pids = freeze(first)
    db.execute("update supervisor.job set payload = '{\"seconds\": 3}'")  # for B
    second = service(**{**settings, "lease_s": KEPT}, name="pod-0")  # the same name: identity is not the name
    second.wait_event("lease.reaped", 10)
    db.wait_for("select count(*) from effects where note = 'start'", 2, 10)
    thaw(pids)

    db.wait_for("select count(*) from effects where note = 'stopped'", 1, 8)  # it would be done after 20 s
    wait_until(lambda: first.metric("supervisor_leases_lost_total") == 1, 10, "A counts one lost lease")
    db.wait_for("select status from supervisor.jobs where id = %s", "done", 20, [job])
    after = db.rows("select attempts, crashes, claims, locked_by from supervisor.jobs where id = %s", [job])
    assert after == [(1, 1, 2, None)], "one attempt counted, one crash for the lost lease, the result of the second run"
    ended = db.rows("select pid, note from effects where note <> 'start' order by note")
    assert ended == [(second.worker_pids()[0], "done"), (first.worker_pids()[0], "stopped")]
    assert first.metric("supervisor_leases_lost_total") == 1
    assert second.metric("supervisor_leases_lost_total") == 0

    # A works on under a new session, in the same processes.
    assert [process.pid for process in first.processes()] == pids
    assert second.stop() == 0
    again = enqueue(conn, "t.effect").id
    db.wait_for("select status from supervisor.jobs where id = %s", "done", 10, [again])
    assert db.value("select pid from effects where job_id = %s", [again]) in pids
    assert first.stop() == 0


@pytest.mark.parametrize("kind", ["f.slow", "t.stubborn", "t.block", "f.fail_late"])
def test_a_result_that_comes_after_the_lease_is_dropped(db: Database, service: Start, kind: str) -> None:
    """B14: the first run's completion or failure arrives while the second one is under way: it changes nothing."""
    settings = {"handlers": MODULES, "processes": 1, "concurrency": 2, "lease_s": 2, "retry_base_s": 0.1}
    first = service(**settings)
    conn = db.connect()
    job = enqueue(conn, kind, {"seconds": 4}).id
    db.wait_for("select count(*) from effects where note = 'start'", 1, 10)
    pids, [worker] = freeze(first), first.worker_pids()
    second = service(**{**settings, "lease_s": KEPT})
    db.wait_for("select count(*) from effects where note = 'start'", 2, 10)
    # Its worker first: the handler ends and has its result stored before the parent knows that time has passed.
    thaw([worker])
    db.wait_for("select count(*) > 0 from effects where note <> 'start' and pid = %s", True, 10, [worker])
    thaw(pids)
    wait_until(lambda: first.metric("supervisor_leases_lost_total") == 1, 10, "A counts one lost lease")
    db.wait_for("select status from supervisor.jobs where id = %s", "done", 20, [job])
    assert db.rows("select attempts, crashes, claims from supervisor.jobs where id = %s", [job]) == [(1, 1, 2)]
    assert db.value("select pid from effects where note = 'done' order by at desc limit 1") == second.worker_pids()[0]
    assert first.metric("supervisor_leases_lost_total") == 1
    assert db.value("select count(*) from supervisor.job") == 0


def test_a_release_after_the_lease_changes_nothing(db: Database, service: Start) -> None:
    """B14: A is told to leave while it is stopped; what it then releases, started or not, runs in B."""
    settings = {"handlers": MODULES, "processes": 1, "concurrency": 1, "lease_s": 2, "retry_base_s": 0.1}
    first = service(**settings, prefetch=4, drain_timeout_s=0.5)
    conn = db.connect()
    jobs = [enqueue(conn, "f.slow", {"seconds": 2.5}).id for _ in range(3)]
    db.wait_for("select count(*) from effects where note = 'start'", 1, 10)
    pids = freeze(first)
    second = service(**{**settings, "lease_s": KEPT}, prefetch=0)
    second.wait_event("lease.reaped", 10)
    db.wait_for("select count(*) from effects where note = 'start'", 2, 10)
    first.send(signal.SIGTERM)
    thaw(pids)
    first.wait_exit(10)
    db.wait_for("select count(*) from supervisor.jobs where status = 'done'", 3, 30)
    assert db.rows("select id from supervisor.jobs where attempts <> 1") == []
    worker = second.worker_pids()[0]
    assert db.rows("select job_id from effects where note = 'done' and pid = %s order by 1", [worker]) == [
        (job,) for job in jobs
    ]
    starts = db.effects("start")
    assert sorted(starts.values()) == [1, 1, 2], "only the job that ran when A was stopped ran twice"
