"""The chaos run's judge of keys finds each thing that must not happen, and nothing where all is well."""

from typing import Any

import pytest

from tests.chaos import keys, load
from tests.support.database import Database

SESSION = 7


@pytest.fixture
def told(db: Database) -> Database:
    db.execute(load.SCHEMA)
    db.execute(keys.SCHEMA)
    return db


def ran(db: Database, job_id: int, began_s: float, ended_s: float, *, asked_s: float = -100, **asked: Any) -> None:
    """As if a job had been added, claimed and run, and had ended; seconds from the beginning of this day."""
    times = {"began": began_s, "ended": ended_s, "asked": asked_s, "id": job_id, "session": SESSION}
    columns = "".join(f", {name}" for name in asked)
    values = "".join(f", %({name})s" for name in asked)
    for statement in (
        f"insert into chaos_asked (job_id, kind, began, committed{columns}) values (%(id)s, 'c.fast',"
        f" current_date + make_interval(secs => %(asked)s), current_date + make_interval(secs => %(asked)s){values})",
        "insert into chaos_run (job_id, token, attempt, pid, note, session, at) values (%(id)s, 1, 1, 1, 'begin',"
        " %(session)s, current_date + make_interval(secs => %(began)s))",
        "insert into chaos_run (job_id, token, attempt, pid, note, at) values (%(id)s, 1, 1, 1, 'end',"
        " current_date + make_interval(secs => %(ended)s))",
        "insert into chaos_lease (job_id, token, session, started_at, claim) values (%(id)s, 1, %(session)s,"
        " current_date + make_interval(secs => %(began)s), true)",
        "insert into supervisor.history (id, finished_at, run_at, created_at, claims, attempts, max_attempts, crashes,"
        " max_crashes, priority, queue, kind) values (%(id)s, current_date + make_interval(secs => %(ended)s), now(),"
        " now(), 1, 1, 1, 0, 1, 0, 'a', 'c.fast')",
    ):
        db.execute(statement, {**times, **asked})


def found(db: Database) -> dict[str, int]:
    return {name: len(rows) for name, rows in keys.kept(db)[0].items() if rows}


LIMITED: dict[str, Any] = {"concurrency_key": "limit 2", "concurrency_limit": 2}
RATED: dict[str, Any] = {"rate_key": "5 a second", "rate_limit": 5}


def test_what_is_as_it_should_be_is_not_found(told: Database) -> None:
    ran(told, 1, 1.0, 2.0, ordering_key="o")
    ran(told, 2, 2.0, 3.0, ordering_key="o")
    ran(told, 3, 1.0, 3.0, **LIMITED)
    ran(told, 4, 1.0, 2.0, **LIMITED)
    ran(told, 5, 2.0, 3.0, **LIMITED)
    ran(told, 6, 1.0, 9.0, **RATED)
    ran(told, 7, 1.2, 9.0, **RATED)
    ran(told, 8, 9.0, 9.5, after=[6, 7], after_failed="hold")
    assert found(told) == {}
    assert keys.kept(told)[1]["most at once"] == {"limit 2": 2}


def test_jobs_of_an_ordering_key_at_one_time_or_the_wrong_way_round(told: Database) -> None:
    ran(told, 1, 1.0, 2.0, ordering_key="together")
    ran(told, 2, 1.9, 3.0, ordering_key="together")
    ran(told, 3, 3.0, 4.0, ordering_key="reversed")
    ran(told, 4, 1.0, 2.0, ordering_key="reversed", asked_s=-50)
    assert found(told) == {"out_of_order": 2}


def test_one_too_many_of_a_concurrency_key(told: Database) -> None:
    for job in (1, 2, 3):
        ran(told, job, 1.0 + job / 10, 2.0, **LIMITED)
    assert found(told) == {"over_limit": 1}


def test_a_run_that_had_lost_its_lease_says_nothing_of_its_keys(told: Database) -> None:
    ran(told, 1, 1.0, 5.0, ordering_key="o", **LIMITED)
    told.execute(
        "insert into supervisor.session (id, parent, name, expires_at, closed_at, closed_as)"
        " values (%s, 1, 'w', current_date, current_date + interval '500 ms', 'reaped')",
        [SESSION],
    )
    told.execute("update chaos_run set session = null where job_id = 1")
    ran(told, 2, 2.0, 3.0, ordering_key="o")
    told.execute("update chaos_run set session = 8 where job_id = 2")
    told.execute("update chaos_lease set session = 8 where job_id = 2")
    assert found(told) == {}


def test_two_starts_of_a_rate_key_that_are_too_close(told: Database) -> None:
    ran(told, 1, 1.0, 2.0, **RATED)
    ran(told, 2, 1.19, 2.0, **RATED)
    assert found(told) == {"too_soon": 1}


def test_a_child_that_ran_before_its_parent_had_ended_or_though_one_is_dead(told: Database) -> None:
    ran(told, 1, 1.0, 2.0)
    ran(told, 2, 1.5, 3.0, after=[1], after_failed="run")
    ran(told, 3, 5.0, 6.0, after=[4], after_failed="cancel")
    told.execute(
        "insert into supervisor.dead_letter (id, status, reason, finished_at, run_at, created_at, claims, attempts,"
        " max_attempts, crashes, max_crashes, priority, queue, kind, payload, headers, errors) values (4, 'dead',"
        " 'attempts', current_date, now(), now(), 1, 1, 1, 0, 1, 0, 'a', 'c.broken', '{}', '{}', '[]')"
    )
    assert found(told) == {"early": 2}


def test_what_is_left_at_a_gate(told: Database) -> None:
    told.execute("insert into supervisor.gated (job_id, gate, due_at, ordering_key) values (1, 2, now(), 'o')")
    told.execute("insert into supervisor.job_after (parent, child) values (5, 6)")
    assert found(told) == {"stranded": 2}
