"""Cron entries that are not fired, cannot be computed or are retired: found, and cured by what is printed."""

from collections.abc import Callable

from supervisor.doctor import Level
from tests.db.test_cron import declare, entry
from tests.doctor.conftest import Patient
from tests.support.service import Service

WARNING, PROBLEM, NOTE, OK = Level.WARNING, Level.PROBLEM, Level.NOTE, Level.OK


def test_entries_that_are_due_and_that_nobody_fires(patient: Patient, service: Callable[..., Service]) -> None:
    patient.finds("schedules", OK, "0 cron entries")
    declare(patient.db, entry("night", "t.noop", cron="* * * * * *"), kinds=("t.noop",), ttl_s=3600.0)
    patient.finds("schedules", OK, "1 cron entries, none overdue")
    patient.db.execute("update supervisor.schedule set next_at = clock_timestamp() - interval '2 minutes'")
    patient.finds("schedules", PROBLEM, "night should have been fired", "2 min ago")
    patient.db.rows("select supervisor.pause_schedule('night')")
    patient.sees_nothing("schedules", PROBLEM)
    patient.db.execute("update supervisor.schedule set paused_at = null")
    service(processes=1)
    patient.db.wait_for("select fired > 0 from supervisor.schedule", True, 20)
    patient.sees_nothing("schedules", PROBLEM)


def test_entries_that_cannot_be_computed_and_retired_ones(patient: Patient) -> None:
    declare(patient.db, entry("a"), entry("b"), entry("c"))
    declare(patient.db, entry("a"), entry("b"))
    patient.db.execute("update supervisor.schedule set problem = 'cron: never' where name = 'a'")
    patient.db.execute("update supervisor.schedule set tz = 'Gone/Away' where name = 'b'")
    finding = patient.finds("schedules", PROBLEM, "a is never due: cron: never")
    assert "supervisor schedules set a" in finding.remedy
    patient.finds("schedules", WARNING, "b cannot be computed on this machine: tz: 'Gone/Away'")
    patient.finds("schedules", NOTE, "c is retired")
    patient.db.rows("select supervisor.set_schedule('a', cron => '0 3 * * *')")
    patient.db.rows("select supervisor.set_schedule('b', tz => 'Europe/Paris')")
    patient.sees_nothing("schedules", PROBLEM)
    patient.sees_nothing("schedules", WARNING)
