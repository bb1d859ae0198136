"""Cron in the database: who defines an entry, who fires it, what operators may set.

Elsewhere: ticks (tests/unit/test_cron.py); services that fire them (tests/process/test_cron.py).
"""

import asyncio
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import errors

from supervisor.cron import Due, Entry, Timetable
from supervisor.db import schedules
from supervisor.db.schedules import Fired, Open
from supervisor.errors import InvalidSchedule
from tests.support.database import Database

SECOND = timedelta(seconds=1)


def entry(name: str = "k", kind: str = "k", cron: str = "* * * * * *", **other: Any) -> Entry:
    full: dict[str, Any] = {
        "tz": "UTC", "missed": 1, "payload": "{}", "queue": "default", "priority": 0, "max_attempts": 20,
        "max_crashes": 3, "unique_key": None, **other,
    }  # fmt: skip
    return Entry(name, kind, cron, **full)


def declare(db: Database, *entries: Entry, kinds: tuple[str, ...] = ("k",), ttl_s: float = 60.0) -> set[str] | None:
    async def send() -> list[str] | None:
        async with await psycopg.AsyncConnection.connect(db.conninfo, autocommit=True) as conn:
            return await schedules.declare(conn, db.schema, kinds, entries, ttl_s=ttl_s)

    changed = asyncio.run(send())
    return None if changed is None else set(changed)


def look(db: Database) -> dict[str, Open]:
    async def send() -> list[Open]:
        async with await psycopg.AsyncConnection.connect(db.conninfo, autocommit=True) as conn:
            return await schedules.open_entries(conn, db.schema)

    return {one.name: one for one in asyncio.run(send())}


def plan(db: Database, found: Open, next_at: datetime | None, problem: str | None = None) -> bool:
    async def send() -> bool:
        async with await psycopg.AsyncConnection.connect(db.conninfo, autocommit=True) as conn:
            return await schedules.plan(conn, db.schema, found, next_at, problem)

    return asyncio.run(send())


def fire(db: Database, found: Open, due: Due) -> Fired | None:
    async def send() -> Fired | None:
        async with await psycopg.AsyncConnection.connect(db.conninfo, autocommit=True) as conn:
            return await schedules.fire(conn, db.schema, found, due)

    return asyncio.run(send())


def due_now(db: Database, name: str = "k", late: timedelta = SECOND) -> Open:
    """An entry whose next tick is so late, as a supervisor sees it."""
    db.execute("update supervisor.schedule set next_at = clock_timestamp() - %s where name = %s", [late, name])
    return look(db)[name]


def jobs(db: Database) -> list[tuple[Any, ...]]:
    return db.rows(
        "select kind, queue, payload, headers ->> 'schedule', headers ->> 'tick' from supervisor.job order by id"
    )


def row(db: Database, name: str = "k") -> dict[str, Any]:
    return dict(db.rows("select to_jsonb(s) from supervisor.schedule s where name = %s", [name])[0][0])


# -- firing ----------------------------------------------------------------------------------------


def test_a_tick_is_fired_once_whoever_tries(db: Database) -> None:
    declare(db, entry(queue="q", payload='{"n": 1}'))
    found = due_now(db)
    assert found.next_at is not None
    due = Due((found.next_at,), 2, found.now + SECOND)
    first = fire(db, found, due)
    assert first is not None
    assert 0.9 < first.late_s < 30
    assert fire(db, found, due) is None
    tick = found.next_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert jobs(db) == [("k", "q", {"n": 1}, "k", tick)]
    after = row(db)
    assert (after["fired"], after["skipped"], after["last_job"]) == (1, 2, first.job)
    assert datetime.fromisoformat(after["next_at"]) == due.next


def test_of_many_at_once_one_fires(db: Database) -> None:
    declare(db, entry())
    found = due_now(db)
    assert found.next_at is not None

    async def race() -> list[Fired | None]:
        conns = [await psycopg.AsyncConnection.connect(db.conninfo, autocommit=True) for _ in range(8)]
        due = Due((found.next_at or found.now,), 0, found.now + SECOND)
        try:
            return await asyncio.gather(*(schedules.fire(conn, db.schema, found, due) for conn in conns))
        finally:
            for conn in conns:
                await conn.close()

    assert sum(one is not None for one in asyncio.run(race())) == 1
    assert len(jobs(db)) == 1


def test_a_holder_of_the_row_that_hangs_holds_up_nothing_and_its_end_loses_nothing(db: Database) -> None:
    """A supervisor cannot hang there, its firing is one statement; whoever else has the row is stepped over."""
    declare(db, entry())
    found = due_now(db)
    due = Due((found.now,), 0, found.now + SECOND)
    holder = db.connect(autocommit=False)
    holder.execute("select 1 from supervisor.schedule for update")
    assert fire(db, found, due) is None
    holder.rollback()
    assert fire(db, found, due) is not None


def test_a_killed_connection_leaves_the_tick_whole(db: Database) -> None:
    declare(db, entry())
    found = due_now(db)
    conn = db.connect(autocommit=False)
    conn.execute(
        "select * from supervisor.fire_schedule('k', %s, %s, array[%s], 0, %s)",
        [found.revision, found.next_at, found.next_at, found.now + SECOND],
    )
    db.execute("select pg_terminate_backend(%s)", [conn.info.backend_pid])
    with pytest.raises(psycopg.OperationalError):
        conn.execute("commit")
    assert jobs(db) == []
    assert fire(db, found, Due((found.now,), 0, found.now + SECOND)) is not None
    assert len(jobs(db)) == 1


def test_nothing_is_fired_before_its_time_by_the_databases_clock(db: Database) -> None:
    """A supervisor whose idea of now is an hour ahead changes nothing."""
    declare(db, entry())
    soon = due_now(db, late=-timedelta(minutes=30))
    assert soon.next_at is not None
    assert fire(db, soon, Due((soon.next_at,), 0, soon.now + timedelta(hours=1))) is None
    late = due_now(db)
    assert fire(db, late, Due((late.now + timedelta(minutes=30),), 0, None)) is None
    assert jobs(db) == []


@pytest.mark.parametrize(
    "order", ["pause_schedule('k')", "set_schedule('k', cron => '0 0 1 1 *')", "unset_schedule('k')"]
)
def test_what_was_computed_before_an_order_fires_nothing(db: Database, order: str) -> None:
    declare(db, entry())
    db.rows("select supervisor.set_schedule('k', missed => 2)")
    found = due_now(db)
    db.rows(f"select supervisor.{order}")
    assert fire(db, found, Due((found.now,), 0, None)) is None


def test_a_plan_is_made_once_and_a_problem_said(db: Database) -> None:
    declare(db, entry())
    found = look(db)["k"]
    assert found.next_at is None
    assert plan(db, found, None, "tz: gone")
    assert not plan(db, found, None, "tz: gone")
    assert row(db)["problem"] == "tz: gone"
    assert plan(db, found, found.now + SECOND)
    assert row(db)["problem"] is None
    assert not plan(db, found, found.now + 2 * SECOND)
    assert look(db)["k"].next_at == found.now + SECOND


# -- who defines -----------------------------------------------------------------------------------


def test_a_definition_is_taken_over_once(db: Database) -> None:
    assert declare(db, entry(), entry("k:b", cron="0 3 * * *")) == {"k", "k:b"}
    assert declare(db, entry(), entry("k:b", cron="0 3 * * *")) == set()
    db.rows("update supervisor.schedule set next_at = '2030-01-01'")
    assert declare(db, entry(missed=5), entry("k:b", cron="0 4 * * *")) == {"k", "k:b"}
    assert look(db)["k"].next_at is not None, "when it is due has not changed"
    assert look(db)["k:b"].next_at is None


def test_the_newer_of_two_definitions_counts_until_its_last_supervisor_is_gone(db: Database) -> None:
    old, new = entry(cron="0 1 * * *"), entry(cron="0 2 * * *")
    declare(db, old)
    declare(db, new)
    assert look(db)["k"].cron == "0 2 * * *"
    assert declare(db, old) == set(), "the old release says its word again, and changes nothing"
    assert look(db)["k"].cron == "0 2 * * *"
    # The new release is taken back: its supervisors go, and the old one's word counts.
    db.execute(
        "update supervisor.schedule_version set expires_at = clock_timestamp() where entries @> %s",
        ['[{"cron": "0 2 * * *"}]'],
    )
    assert declare(db, old) == {"k"}
    assert look(db)["k"].cron == "0 1 * * *"
    # And rolled out once more, soon after: it is still the newer one.
    assert declare(db, new) == {"k"}


def test_a_definition_that_was_away_for_long_is_a_new_one(db: Database) -> None:
    old, new = entry(cron="0 1 * * *"), entry(cron="0 2 * * *")
    declare(db, old)
    declare(db, new)
    db.execute(
        "update supervisor.schedule_version set expires_at = expires_at - interval '20 minutes' where entries @> %s",
        ['[{"cron": "0 1 * * *"}]'],
    )
    assert declare(db, old) == {"k"}, "a release that is put back weeks later"
    assert look(db)["k"].cron == "0 1 * * *"


def test_entries_of_a_removed_handler_are_retired_when_its_last_supervisor_is_gone(db: Database) -> None:
    declare(db, entry(), entry("other", "other"), kinds=("k", "other"))
    assert declare(db, entry("other", "other"), kinds=("other",)) == set(), "another supervisor runs k still"
    db.execute("update supervisor.schedule_version set expires_at = clock_timestamp() where kind = 'k'")
    assert declare(db, entry("other", "other"), kinds=("other",)) == {"k"}
    assert set(look(db)) == {"other"}
    retired = row(db)
    assert retired["retired_at"] is not None
    with pytest.raises(errors.InvalidParameterValue, match="is retired"):
        db.rows("select supervisor.run_schedule('k')")
    assert declare(db, entry(), kinds=("k",)) == {"k"}
    assert row(db)["retired_at"] is None


def test_an_entry_is_defined_while_a_supervisor_that_has_it_was_heard_of(db: Database) -> None:
    declare(db, entry("a"), entry("b", "other"), kinds=("k", "other"))
    assert {one.defined for one in look(db).values()} == {True}
    db.execute(
        "update supervisor.schedule_version set expires_at = clock_timestamp() - interval '1 s' where kind = 'k'"
    )
    assert {name: one.defined for name, one in look(db).items()} == {"a": False, "b": True}
    declare(db, entry("a"))
    assert look(db)["a"].defined


def test_an_entry_taken_off_its_handler_is_retired_at_once(db: Database) -> None:
    declare(db, entry(), entry("k:b"))
    assert declare(db, entry()) == {"k:b"}
    assert declare(db, kinds=("k",)) == {"k"}
    assert look(db) == {}


def test_a_handler_that_was_renamed_fires_under_one_name(db: Database) -> None:
    """Its old name is an alias, a kind that it has without entries."""
    declare(db, entry())
    assert declare(db, entry("new", "new"), kinds=("k", "new")) == {"k", "new"}
    assert declare(db, entry()) == set()
    assert set(look(db)) == {"new"}


def test_kinds_without_entries_write_nothing(db: Database) -> None:
    assert declare(db, kinds=("a", "b")) == set()
    assert db.value("select count(*)::int from supervisor.schedule_version") == 0


def test_two_at_once_do_not_wait_for_each_other(db: Database) -> None:
    conn = db.connect(autocommit=False)
    conn.execute(
        "select supervisor.declare_schedules(array['k'], %s, 60)", [json.dumps([{**entry()._asdict(), "payload": {}}])]
    )
    assert declare(db, entry()) is None
    conn.rollback()
    assert declare(db, entry()) == {"k"}


def test_an_operators_edit_survives_a_new_definition(db: Database) -> None:
    declare(db, entry(cron="0 1 * * *"))
    db.rows("select supervisor.set_schedule('k', cron => '30 5 * * *', tz => 'Europe/Paris', by => 'ann')")
    db.rows("update supervisor.schedule set next_at = '2030-01-01'")
    declare(db, entry(cron="0 2 * * *", missed=0))
    found = look(db)["k"]
    assert (found.cron, found.tz, found.missed) == ("30 5 * * *", "Europe/Paris", 0)
    assert found.next_at is not None, "the definition changed, when it is due did not"
    assert db.value("select supervisor.unset_schedule('k')") is True
    found = look(db)["k"]
    assert (found.cron, found.tz, found.next_at) == ("0 2 * * *", "UTC", None)
    assert db.value("select supervisor.unset_schedule('k')") is False


# -- orders ----------------------------------------------------------------------------------------


def test_paused_and_resumed(db: Database) -> None:
    declare(db, entry())
    due_now(db)
    assert db.value("select supervisor.pause_schedule('k', by => 'ann')") is True
    assert db.value("select supervisor.pause_schedule('k', by => 'bob')") is False
    assert row(db)["paused_by"] == "ann"
    assert look(db) == {}
    assert db.value("select (supervisor.run_schedule('k', by => 'ann')).created") is True
    assert db.rows("select kind, headers from supervisor.job") == [("k", {"schedule": "k", "run_by": "ann"})]
    assert db.value("select supervisor.resume_schedule('k')") is True
    assert db.value("select supervisor.resume_schedule('k')") is False
    assert look(db)["k"].next_at is None, "what was due meanwhile is not missed"


BAD_ORDERS = [
    ("set_schedule('k')", "nothing to set"),
    ("set_schedule('k', cron => '61 * * * *')", "cron is no cron expression: bad minute"),
    ("set_schedule('k', cron => '* * * *')", "cron has 4 fields"),
    ("set_schedule('k', cron => '')", "cron has 0 fields"),
    ("set_schedule('k', cron => '0 0 30 2 *')", "bad day-of-month"),
    ("set_schedule('k', tz => 'Mars/Phobos')", "tz is 'Mars/Phobos'"),
    ("set_schedule('k', tz => 'europe/paris')", "tz is 'europe/paris'"),
    ("set_schedule('k', tz => 'localtime')", "tz is 'localtime'"),
    ("set_schedule('k', missed => -1)", "missed is -1"),
    ("set_schedule('k', missed => 1001)", "missed is 1001"),
    ("set_schedule('nobody', missed => 1)", "name: no schedule is called 'nobody'"),
    ("pause_schedule('nobody')", "name: no schedule is called 'nobody'"),
    ("pause_schedule('k', by => repeat('x', 201))", "by must be at most 200 bytes"),
    ("run_schedule(null)", "name: no schedule is called null"),
]


def test_bad_orders_are_refused_with_the_field_named(db: Database) -> None:
    declare(db, entry())
    before = row(db)
    for call, named in BAD_ORDERS:
        with pytest.raises(errors.InvalidParameterValue) as caught:
            db.rows(f"select supervisor.{call}")
        assert named in str(caught.value), call
        assert row(db) == before


def test_the_database_and_the_service_refuse_the_same_expressions(db: Database) -> None:
    """By random fields, good and bad; only days that never meet their weekdays are the service's alone to find."""
    draw = random.Random(7)
    good = [
        ["*", "0", "59", "*/5", "1-5", "5/10", "1,2,3", "10-20/3", "007"], ["*", "0", "30", "*/7", "58-59"],
        ["*", "0", "23", "0-23", "*/2", "1,5"], ["*", "1", "31", "L", "LW", "15-20", "*/9", "L/2", "30", "29"],
        ["*", "1", "jan", "FEB", "2", "4,6", "MAR-MAY", "*/3", "feb-apr/2"],
        ["*", "0", "7", "sun", "MON-FRI", "1#2", "5L", "*/2"],
    ]  # fmt: skip
    bad = [
        "60",
        "-1",
        "a",
        "",
        "1-",
        "*/0",
        "5-1",
        "1,,2",
        "MON#6",
        "8",
        "L",
        "JAN",
        "1#2",
        "32",
        "*-5",
        "1/2/3",
        "²",
        "?",
        "0x1",
        "9L",
        "1-L",
    ]
    texts = []
    for _ in range(1500):
        fields = [draw.choice(options) for options in good]
        if draw.random() < 0.4:
            fields[draw.randrange(6)] = draw.choice(bad)
        texts.append(" ".join(fields if draw.random() < 0.5 else fields[1:]))
    said: dict[str, str | None] = dict(
        db.rows("select t, supervisor.cron_problem(t) from unnest(%s::text[]) t", [texts])
    )
    differ, refused = [], 0
    for text in texts:
        try:
            Timetable(text)
            problem = None
        except InvalidSchedule as error:
            problem = error.reason
            refused += 1
        if (problem is None) != (said[text] is None) and "never comes true" not in (problem or ""):
            differ.append((text, problem, said[text]))
    assert differ == []
    assert 200 < refused < 1200
