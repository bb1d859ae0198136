"""`supervisor schedules` as its users meet it, and the same orders from Python."""

import asyncio
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from supervisor import exits
from supervisor.errors import InvalidSchedule, SchemaMissing
from supervisor.schedules import (
    pause_schedule,
    resume_schedule,
    run_schedule,
    schedules,
    set_schedule,
    unset_schedule,
)
from tests.db.test_cron import declare, entry
from tests.e2e.test_cli import Cli
from tests.support.database import Database


@pytest.fixture
def cli(db: Database, tmp_path: Path) -> Cli:
    return Cli(tmp_path, SUPERVISOR_DATABASE_URL=db.conninfo)


def test_entries_are_listed_paused_run_and_set(cli: Cli, db: Database) -> None:
    assert "no handler" in cli("schedules", "list").out
    declare(db, entry("k", cron="30 2 * * *", tz="Europe/Paris"), entry("k:old", cron="0 0 1 1 *"))
    declare(db, entry("k", cron="30 2 * * *", tz="Europe/Paris"))  # k:old is retired by that
    [one, old] = cli("schedules", "list", "--runs", "400", "--json").document["schedules"]
    assert (one["name"], one["cron"], one["tz"], one["missed"], one["state"]) == (
        "k",
        "30 2 * * *",
        "Europe/Paris",
        "once",
        "open",
    )
    assert (old["name"], old["state"], old["next"]) == ("k:old", "retired", [])
    runs = [datetime.fromisoformat(run) for run in one["next"]]
    assert len(runs) == 400
    assert {(run.hour, run.minute) for run in runs} == {(2, 30), (3, 0)}, "a year has one spring change"
    line = next(line for line in cli("schedules", "list").out.splitlines() if line.strip().startswith("k "))
    assert "30 2 * * *" in line
    assert f"{runs[0]:%Y-%m-%d %H:%M:%S %z}" in line

    assert cli("schedules", "pause", "k", "--by", "ann").out.startswith("schedule k paused; next: ")
    assert cli("schedules", "pause", "k", "--json").document["changed"] is False
    assert "paused" in cli("schedules", "list").out
    ran = cli("schedules", "run", "k", "--json").document
    assert ran["created"] is True
    assert db.value("select id from supervisor.job") == ran["id"]
    assert cli("schedules", "resume", "k").out.startswith("schedule k resumed; next: ")

    done = cli(
        "schedules", "set", "k", "--cron", "*/10 * * * * *", "--tz", "Asia/Tokyo", "--missed", "skip", "--json"
    ).document
    assert (done["cron"], done["tz"], done["missed"], done["defined_cron"], done["defined_missed"]) == (
        "*/10 * * * * *", "Asia/Tokyo", "skip", "30 2 * * *", "once",
    )  # fmt: skip
    assert "(set)" in cli("schedules", "list").out
    again = cli("schedules", "unset", "k", "--json").document
    assert (again["changed"], again["cron"], again["tz"], again["missed"]) == (
        True,
        "30 2 * * *",
        "Europe/Paris",
        "once",
    )
    assert cli("schedules", "unset", "k").out.startswith("schedule k was as its handler says; next: ")


def test_what_is_listed_next_is_what_is_planned(cli: Cli, db: Database) -> None:
    declare(db, entry("k", cron="0 * * * *"))
    db.execute("update supervisor.schedule set next_at = date_trunc('hour', clock_timestamp()) + interval '3 hours'")
    planned = db.value("select next_at from supervisor.schedule")
    [one] = cli("schedules", "list", "--runs", "2", "--json").document["schedules"]
    assert [datetime.fromisoformat(run) for run in one["next"]] == [planned, planned + timedelta(hours=1)]


def test_bad_orders_are_refused_before_the_database_is_asked(tmp_path: Path) -> None:
    away = Cli(tmp_path, SUPERVISOR_DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
    for words, named in [
        (["set", "k", "--cron", "61 * * * *"], "schedule refused: cron: is no cron expression: bad minute"),
        (["set", "k", "--tz", "Mars/Phobos"], "schedule refused: tz: 'Mars/Phobos'"),
        (["set", "k", "--missed", "all"], "schedule refused: missed: "),
        (["set", "k"], "nothing to set"),
    ]:
        away("schedules", *words).refused(exits.USAGE, named)


def test_an_unknown_name_is_refused_with_what_is_wrong(cli: Cli, db: Database) -> None:
    declare(db, entry("k"))
    cli("schedules", "pause", "nobody").refused(exits.USAGE, "schedule refused: name: no schedule is called 'nobody'")
    assert json.loads(db.value("select to_json(paused_at)::text from supervisor.schedule") or "null") is None


def test_orders_from_python_belong_to_the_callers_transaction(db: Database) -> None:
    """Sync and async alike; bad input leaves the transaction as it was."""
    declare(db, entry("k", cron="30 2 * * *", tz="Europe/Paris"))
    with db.connect(autocommit=False) as conn:
        assert pause_schedule(conn, "k", by="ann") is True
        assert pause_schedule(conn, "k") is False
        conn.rollback()
        [one] = schedules(conn)
        assert (one.name, one.state) == ("k", "open")
        wrong: dict[str, Callable[[], object]] = {
            "name": lambda: pause_schedule(conn, ""),
            "by": lambda: run_schedule(conn, "k", by="x" * 201),
            "cron": lambda: set_schedule(conn, "k", cron="0 0 30 2 *"),
            "tz": lambda: set_schedule(conn, "k", tz="Mars/Base"),
            "missed": lambda: set_schedule(conn, "k", missed=0),
            "nothing to set": lambda: set_schedule(conn, "k"),
        }
        for named, call in wrong.items():
            with pytest.raises(InvalidSchedule, match=named):
                call()
        assert conn.execute("select 1").fetchone() == (1,), "the transaction can go on"
        with pytest.raises(InvalidSchedule, match="conn"):
            pause_schedule("postgresql://", "k")  # type: ignore[call-overload]
        conn.rollback()
        with pytest.raises(InvalidSchedule, match="elsewhere"):
            pause_schedule(conn, "elsewhere")

    async def awaited() -> None:
        async with await db.aconnect() as conn:
            assert await pause_schedule(conn, "k", by="ann") is True
            added = await run_schedule(conn, "k", by="ann")
            assert added == (db.value("select id from supervisor.job"), True)
            await set_schedule(conn, "k", cron="*/10 * * * *", missed="skip")
            [one] = await schedules(conn)
            assert (one.cron, one.tz, one.missed, one.state) == ("*/10 * * * *", "Europe/Paris", 0, "paused")
            assert [await unset_schedule(conn, "k"), await unset_schedule(conn, "k")] == [True, False]
            assert [await resume_schedule(conn, "k"), await resume_schedule(conn, "k")] == [True, False]
            with pytest.raises(SchemaMissing):
                await schedules(conn, schema="elsewhere")

    asyncio.run(awaited())
