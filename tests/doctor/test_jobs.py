"""What lies in the queue and should not: really made, found, cured by what is printed: a supervisor that runs."""

from collections.abc import Callable

import pytest

from supervisor.doctor import Level, Limits
from supervisor.doctor.report import commands
from tests.doctor.conftest import Patient, matching
from tests.support.queue import Holder, enqueue
from tests.support.service import Service

WARNING, PROBLEM, NOTE, OK = Level.WARNING, Level.PROBLEM, Level.NOTE, Level.OK
Start = Callable[..., Service]
SOON = Limits(late_s=1.0, waited_s=0.0)


def test_jobs_are_due_and_nobody_runs_them(patient: Patient, service: Start) -> None:
    patient.finds("presence", NOTE, "no supervisor runs")
    patient.db.execute("insert into supervisor.lane (queue, priority) values ('mail', 0)")
    enqueue(patient.db.connect(), kind="t.noop", queue="mail")
    patient.sees_nothing("presence", PROBLEM)  # it may be about to start
    finding = patient.finds("presence", PROBLEM, "no supervisor runs, and jobs are due in mail", limits=SOON)
    assert list(commands(finding.remedy)) == ["supervisor run"]
    service(name="shop")
    patient.db.wait_for("select count(*)::int from supervisor.history", 1)
    report = patient.ask(limits=SOON)
    assert matching(report, "presence", OK, "1 supervisors run: shop")
    assert report.at_least(WARNING) == tuple(f for f in report.at_least(WARNING) if f.check == "durability")


def test_queues_that_these_settings_leave_to_others(patient: Patient, service: Start) -> None:
    service(queues="mail", name="mail only")
    enqueue(patient.db.connect(), kind="t.noop", queue="bulk")
    patient.db.wait_for("select count(*)::int from supervisor.lane where queue = 'bulk'", 1)
    finding = patient.finds("presence", NOTE, "jobs are due in bulk", limits=SOON, queues="mail")
    assert "SUPERVISOR_QUEUES" in finding.remedy
    patient.sees_nothing("presence", NOTE, limits=SOON, queues="mail,*")


@pytest.mark.parametrize("fate", ["unknown", "ended", "lapsed"])
def test_jobs_and_leases_of_workers_that_are_gone(patient: Patient, service: Start, fate: str) -> None:
    """The row of a worker deleted by hand, a session that ended with a job, a lease that nobody has reaped."""
    db = patient.db
    db.execute("insert into supervisor.lane (queue, priority) values ('default', 0)")
    enqueue(db.connect(), kind="t.noop")
    holder = Holder(db)
    [held] = holder.claim().jobs
    db.execute("update supervisor.job set started_at = clock_timestamp() - interval '1 hour'")
    patient.sees_nothing("leases", PROBLEM, limits=SOON)
    if fate == "unknown":
        db.execute("delete from supervisor.session where id = %s", [holder.session])
    elif fate == "ended":
        db.execute(
            "update supervisor.session set closed_at = now() - interval '1 hour', closed_as = 'ended' where id = %s",
            [holder.session],
        )
    else:
        db.execute(
            "update supervisor.session set expires_at = now() - interval '1 hour' where id = %s", [holder.session]
        )
    check, level, words = (
        ("presence", WARNING, "1 workers' leases passed more than 1.0 s ago")
        if fate == "lapsed"
        else ("leases", PROBLEM, f"1 jobs are leased to workers that are gone, for more than 1.0 s (ids {held.id})")
    )
    finding = patient.finds(check, level, words, limits=SOON)
    patient.sees_nothing(check, level, words)  # with the usual patience, a supervisor may be about to do it
    assert list(commands(finding.remedy)) == ["supervisor run"]
    service(retry_base_s=0.01)
    db.wait_for("select count(*)::int from supervisor.history where id = %s", 1, 90, [held.id])
    patient.sees_nothing(check, level, limits=SOON)


def test_wishes_for_wake_ups_of_the_dead(patient: Patient) -> None:
    patient.db.execute("insert into supervisor.waiting values (1), (2)")
    patient.db.execute(
        "insert into supervisor.parent (id, name, host, pid, version, state, expires_at)"
        " values (2, 'n', 'h', 1, '0', 'ready', now() - interval '1 hour')"
    )
    patient.is_cured_of("presence", WARNING, "2 wishes for wake-ups of supervisors that are gone")
    assert patient.db.value("select count(*)::int from supervisor.waiting") == 0


def test_kinds_that_nobody_here_knows(patient: Patient, service: Start) -> None:
    """Before any worker has met them, by the handlers of these settings; after that by what workers put back."""
    db, known = patient.db, frozenset({"t.noop"})
    db.execute("insert into supervisor.lane (queue, priority) values ('default', 0)")
    conn = db.connect()
    enqueue(conn, kind="t.noop")
    enqueue(conn, 2, kind="of tomorrow", delay="1 hour")
    finding = patient.finds("kinds", WARNING, "jobs of kind of tomorrow wait", kinds=known)
    assert "SUPERVISOR_HANDLERS" in finding.remedy
    patient.sees_nothing("kinds", WARNING, kinds=known | {"of tomorrow"})
    patient.sees_nothing("kinds", WARNING)  # what these settings know was not asked
    enqueue(conn, kind="of another release")
    service()
    db.wait_for("select count(*)::int from supervisor.job where unknown_since is not null", 1)
    finding = patient.finds("kinds", WARNING, "jobs of kind of another release were put back", kinds=known)
    assert "after 1 d such a job is dead" in finding.remedy
    db.execute("delete from supervisor.job")
    assert matching(patient.ask(kinds=known), "kinds", OK)
