"""Rows that no worker could read, or whose claim would overflow, are refused by the table, whoever writes them.

Such a row once stopped every worker that met it: its claim was committed, its answer could not be read, it
was given back, and was claimed again.
"""

from datetime import UTC, datetime, timedelta, timezone

import psycopg
import pytest

from supervisor import NewJob
from supervisor.client import enqueue
from supervisor.errors import InvalidJob
from tests.support.database import Database
from tests.support.queue import Holder

REFUSED: dict[str, tuple[str, object]] = {
    "run_at is before time": ("run_at", "-infinity"),
    "run_at is never": ("run_at", "infinity"),
    "run_at is before Christ": ("run_at", "0044-03-15 BC"),
    "run_at is in year 10000": ("run_at", "10000-01-01"),
    "created_at is before time": ("created_at", "-infinity"),
    "started_at is before time": ("started_at", "-infinity"),
    "cancel_at is never": ("cancel_at", "infinity"),
    "unknown_since is before time": ("unknown_since", "-infinity"),
    "claims at the end of bigint": ("claims", 2**63 - 1),
    "claims below zero": ("claims", -1),
    "attempts at the end of integer": ("attempts", 2**31 - 1),
    "attempts below zero": ("attempts", -(2**31)),
    "crashes at the end of integer": ("crashes", 2**31 - 1),
    "crashes below zero": ("crashes", -1),
    "max_attempts of none": ("max_attempts", 0),
    "max_crashes of none": ("max_crashes", 0),
    "queue without a name": ("queue", ""),
    "queue of too long a name": ("queue", "q" * 129),
    "unique_key of nothing": ("unique_key", ""),
    "unique_key that is too long": ("unique_key", "k" * 1025),
    "priority below all": ("priority", -101),
    "priority above all": ("priority", 101),
    "timeout of nothing": ("timeout", "0"),
    "timeout below nothing": ("timeout", "-1 day"),
}


@pytest.mark.pg("15", "18")
def test_unreadable_rows_are_refused(db: Database) -> None:
    for name, (column, value) in REFUSED.items():
        with pytest.raises(psycopg.errors.CheckViolation):
            db.execute(f"insert into supervisor.job (kind, {column}) values ('k', %s)", [value])
            pytest.fail(f"{name} was taken")
    for kind in ("", "k" * 129, "\u00fc" * 65):
        with pytest.raises(psycopg.errors.CheckViolation):
            db.execute("insert into supervisor.job (kind) values (%s)", [kind])
    for column, value in (("claims", 2**63), ("attempts", 2**31)):
        with pytest.raises(psycopg.errors.NumericValueOutOfRange):
            db.execute(f"insert into supervisor.job (kind, {column}) values ('k', %s)", [value])


def test_a_payload_that_would_not_fit_as_text_is_refused(db: Database) -> None:
    """64 MB as it is stored; longer ones could not be sent to a worker."""
    insert = "insert into supervisor.job (kind, payload) values ('k', jsonb_build_object('x', repeat('y', %s)))"
    db.execute(insert, [60_000_000])
    with pytest.raises(psycopg.errors.CheckViolation):
        db.execute(insert, [70_000_000])


@pytest.mark.pg("15", "18")
def test_rows_at_the_bounds_are_claimed_failed_and_ended(db: Database) -> None:
    """The first and the last of everything; each can be claimed and settled, and shown by any driver."""
    for values in (
        "'1970-01-01+00', '1970-01-01+00', 0, 0, 0, 1",
        f"'1970-01-01+00', '9999-12-31+00', {2**62 - 1}, {2**30 - 1}, {2**30 - 2}, {2**31 - 1}",
    ):
        db.execute(
            "insert into supervisor.job (kind, run_at, created_at, claims, attempts, crashes, max_attempts)"
            f" values ('k', {values})"
        )
    db.execute("insert into supervisor.job (kind, run_at) values ('k', '9999-12-31+00')")
    db.execute("update supervisor.job set errors = '{\"no\": \"array\"}', timeout = '3000 years' where id = 2")
    holder = Holder(db)
    claim = holder.claim(10, lookback_s=0)
    assert sorted(claim.ids) == [1, 2]
    assert all(status in ("queued", "dead") for status, _ in holder.settle(claim.jobs, "failed", error="e").values())
    for zone in ("UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"):
        conn = db.connect()
        conn.execute("select set_config('timezone', %s, false)", (zone,))
        rows = conn.execute("select run_at, created_at, started_at, finished_at from supervisor.jobs").fetchall()
        assert len(rows) == 3
    assert db.value("select jsonb_array_length(errors) from supervisor.jobs where id = 2") == 1


def test_a_time_that_cannot_be_shown_everywhere_is_refused_before_any_statement(db: Database) -> None:
    conn = db.connect(autocommit=False)
    for late in (datetime.max.replace(tzinfo=UTC), datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))):
        with pytest.raises(InvalidJob) as error:
            enqueue(conn, "k", {}, run_at=late)
        assert error.value.field == "run_at"
    assert enqueue(conn, "k", {}, run_at=datetime(9999, 12, 31, tzinfo=UTC)).created
    NewJob("k", {}, run_at=datetime(1, 1, 1, tzinfo=UTC))
    conn.commit()
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="year 10000"):
        db.rows("select from supervisor.enqueue('k', run_at => '9999-12-31 00:00:01+00')")
