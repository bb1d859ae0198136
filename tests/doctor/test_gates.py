"""What holds jobs back, and nobody may know: each really made, found, cured as printed."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from supervisor.doctor import Level, Limits
from supervisor.doctor.report import commands
from tests.doctor.conftest import Patient, matching
from tests.support.gates import at_gate, gated, let_in, look
from tests.support.jobs import enqueue
from tests.support.queue import Holder
from tests.support.service import Service

WARNING, PROBLEM, NOTE, OK = Level.WARNING, Level.PROBLEM, Level.NOTE, Level.OK
SOON = Limits(late_s=0.0, paused_s=0.0)


def test_a_queue_that_somebody_has_paused_and_forgotten(patient: Patient) -> None:
    db = patient.db
    db.rows("select supervisor.pause_queue('mail', 'ann')")
    patient.finds("queues", OK)
    db.execute("update supervisor.queue set paused_at = clock_timestamp() - interval '4 days'")
    patient.finds("queues", NOTE, "queue mail was paused 4 d ago by ann; no job in it is due")
    enqueue(db, "k", queue="mail")
    db.rows("select supervisor.discover()")
    patient.is_cured_of("queues", WARNING, "queue mail was paused 4 d ago by ann, and jobs in it have been due for")
    patient.finds("queues", OK)


def test_a_limit_that_nobody_has_counted_for(patient: Patient) -> None:
    db = patient.db
    db.rows("select supervisor.set_queue('two words', 3)")
    patient.finds("queues", OK)
    finding = patient.finds("queues", PROBLEM, "nothing is claimed from queue two words: its limit of 3", limits=SOON)
    assert list(commands(finding.remedy)) == ["supervisor queues set 'two words' --max-running 3"]
    db.execute("delete from supervisor.queue")
    db.rows("select supervisor.set_queue('mail', 3)")
    patient.is_cured_of("queues", PROBLEM, "nothing is claimed from queue mail", limits=SOON)
    assert db.value("select counted from supervisor.queue")


def dead_holder(patient: Patient, worker: Holder, key: str, behind: int) -> tuple[int, list[int]]:
    first = gated(worker.conn, order=key, hold=True)
    others = [gated(worker.conn, order=key) for _ in range(behind)]
    look(worker.conn)
    worker.settle(worker.claim().jobs, "dead", error="E")
    look(worker.conn)
    return first, others


@pytest.mark.parametrize("remedy", ["retry", "release-order"])
def test_keys_that_dead_jobs_hold(patient: Patient, remedy: str) -> None:
    db, worker = patient.db, Holder(patient.db)
    patient.finds("keys", OK)
    dead_holder(patient, worker, "idle", 0)
    patient.finds("keys", NOTE, "1 dead jobs hold their ordering keys, and none waits behind them")
    first, [second, _] = dead_holder(patient, worker, "account:7", 2)
    long, _ = dead_holder(patient, worker, "k" * 1000, 1)
    finding = patient.finds(
        "keys", WARNING, f"2 ordering keys that jobs wait for: account:7 (job {first}, 2 behind it)"
    )
    assert "k" * 100 not in finding.what
    by_hand = [one for one in commands(finding.remedy) if f" {remedy} " in one]
    assert by_hand == [f"supervisor jobs {remedy} {first} {long}"]
    patient.cure(replace(finding, remedy=f"`{by_hand[0]}`"))
    patient.sees_nothing("keys", WARNING)
    look(worker.conn)
    assert (second in let_in(db)) == (remedy == "release-order")


def test_jobs_that_wait_for_dead_ones(patient: Patient) -> None:
    db, worker = patient.db, Holder(patient.db)
    patient.finds("parents", OK)
    [dead] = enqueue(db, "k")
    children = [gated(worker.conn, after=[dead], failed=failed) for failed in ("hold", "hold")]
    worker.settle(worker.claim().jobs, "dead", error="E")
    look(worker.conn)
    assert at_gate(db, children[0]) == "parents"
    finding = patient.is_cured_of("parents", WARNING, f"2 jobs (ids {children[0]}, {children[1]})", f"{dead} (dead)")
    assert next(iter(commands(finding.remedy))) == f"supervisor jobs retry {dead}"
    assert db.statuses() == {"queued": 1, "cancelled": 2}, "both remedies were taken"


def test_keys_without_a_job_and_jobs_that_nobody_lets_in(patient: Patient, service: Callable[..., Service]) -> None:
    db, conn = patient.db, patient.db.connect()
    patient.finds("gates", OK)
    lost, next_one = gated(conn, kind="t.noop", order="a"), gated(conn, kind="t.noop", order="a")
    stuck = gated(conn, kind="t.noop", order="b")
    db.rows("select supervisor.discover()")
    look(conn)
    patient.finds("gates", OK)
    db.execute("delete from supervisor.job where id = %s", [lost])
    db.execute("update supervisor.job set run_at = supervisor.parked_at() where id = %s", [stuck])
    patient.finds("gates", PROBLEM, f"1 jobs wait for nothing, and nobody will let them in (ids {stuck})")
    service(processes=1)
    patient.is_cured_of("gates", PROBLEM, f"1 jobs are gone and have left their keys (ids {lost})")
    patient.is_cured_of("gates", PROBLEM, "wait for nothing")
    db.wait_for("select array_agg(id order by id) from supervisor.history", [next_one, stuck])
    assert matching(patient.ask(), "gates", OK)
