"""`supervisor queues` as its users meet it, and the same orders from Python."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from supervisor import exits
from supervisor.errors import InvalidQueue, SchemaMissing
from supervisor.queues import pause_queue, queue_settings, resume_queue, set_queue, unset_queue
from tests.e2e.test_cli import Cli
from tests.support.database import Database
from tests.support.jobs import enqueue
from tests.support.service import Service


@pytest.fixture
def cli(db: Database, tmp_path: Path) -> Cli:
    return Cli(tmp_path, SUPERVISOR_DATABASE_URL=db.conninfo)


def test_a_queue_is_paused_limited_and_shown(cli: Cli, db: Database) -> None:
    enqueue(db, "k", count=3, queue="email")
    enqueue(db, "k", queue="other")
    db.rows("select supervisor.discover()")
    assert cli("queues", "pause", "email", "--by", "ann").out == "queue email paused\n"
    again = cli("queues", "pause", "email", "--json").document
    assert (again["changed"], again["paused_by"], again["max_running"]) == (False, "ann", None)
    done = cli("queues", "set", "email", "--max-running", "2", "--json").document
    assert (done["changed"], done["max_running"], done["running"]) == (True, 2, 0)
    assert db.value("select counted from supervisor.queue"), "no supervisor runs, so the command has counted"

    [email, other] = cli("queues", "list", "--json").document["queues"]
    assert (email["queue"], email["paused_by"], email["max_running"], email["running"]) == ("email", "ann", 2, 0)
    assert (other["queue"], other["paused_at"], other["max_running"]) == ("other", None, None)
    line = next(line for line in cli("queues", "list").out.splitlines() if "email" in line)
    assert "paused" in line
    assert "by ann" in line
    [email, _] = cli("status", "--json").document["queues"]
    assert (email["queue"], email["paused"], email["max_running"]) == ("email", True, 2)
    assert "paused" in next(line for line in cli("status").out.splitlines() if "email" in line)

    assert cli("queues", "resume", "email").out == "queue email resumed\n"
    assert cli("queues", "resume", "email").out == "queue email was not paused\n"
    assert cli("queues", "unset", "email").out == "queue email has no limit any more\n"
    assert cli("queues", "unset", "email").out == "queue email had no limit\n"
    assert db.rows("select * from supervisor.queue") == []


def test_a_rate_is_set_shown_and_taken_away_by_itself(cli: Cli, db: Database) -> None:
    said = cli("queues", "set", "email", "--rate", "100/min", "--max-running", "3")
    assert said.out == "queue email runs at most 3 at one time and starts at most 100/min\n"
    again = cli("queues", "set", "email", "--rate", "20/90s", "--json").document
    assert (again["rate_limit"], again["rate_period_s"], again["max_running"]) == (20, 90.0, 3)
    assert "20/90s" in next(line for line in cli("queues", "list").out.splitlines() if "email" in line)
    assert "20/90s" in next(line for line in cli("status").out.splitlines() if "email" in line)
    assert cli("queues", "unset", "email", "--what", "rate").out == "queue email has no rate any more\n"
    assert cli("queues", "unset", "email", "--what", "rate").out == "queue email had no rate\n"
    [line] = cli("queues", "list", "--json").document["queues"]
    assert (line["rate_limit"], line["rate_period_s"], line["max_running"]) == (None, None, 3)
    assert cli("queues", "unset", "email").out == "queue email has no limit any more\n"
    assert db.rows("select * from supervisor.queue") == []


def test_a_name_that_nobody_has_used_is_told_and_set_all_the_same(cli: Cli, db: Database) -> None:
    ran = cli("queues", "pause", "emial")
    assert (ran.code, ran.out) == (0, "queue emial paused\n")
    assert "no job of queue 'emial' is known yet" in ran.err
    assert db.value("select name from supervisor.queue") == "emial"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["queues", "set", "q", "--max-running", "0"], "max_running: must be between 1 and 10000"),
        (["queues", "set", "q", "--max-running", "-1"], "max_running: must be between 1 and 10000"),
        (["queues", "set", "", "--max-running", "1"], "queue: must not be empty"),
        (["queues", "pause", "x" * 129], "queue: "),
        (["queues", "pause", "q", "--by", "x" * 201], "by: "),
        (["queues", "resume", ""], "queue: must not be empty"),
        (["queues", "unset", ""], "queue: must not be empty"),
        (["queues", "unset", "q", "--what", "pause"], "what: must be max_running or rate"),
        (["queues", "set", "q", "--rate", "0/s"], "rate_limit: must be between 1 and 1000000"),
        (["queues", "set", "q", "--rate", "5/0.5s"], "rate_period: is 0.5 s, must be 1 second to 366 days"),
        (["queues", "set", "q", "--rate", "5/367d"], "rate_period: is 3.17088e+07 s, must be 1 second to 366 days"),
        (["queues", "set", "q", "--rate", "ten per second"], "rate: must be like 10/s"),
    ],
)
def test_bad_settings_are_refused_before_the_database_is_asked(tmp_path: Path, words: list[str], named: str) -> None:
    away = Cli(tmp_path, SUPERVISOR_DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
    away(*words).refused(exits.USAGE, "queue settings refused", named)


def test_a_limit_from_the_shell_holds_in_a_running_service(
    cli: Cli, db: Database, service: Callable[..., Service]
) -> None:
    service(processes=1, concurrency=5)
    enqueue(db, "t.sleep", {"seconds": 30.0}, count=2, queue="q")
    db.wait_for("select count(*)::int from effects", 2, 20)
    assert cli("queues", "set", "q", "--max-running", "3", "--json").document["running"] == 2
    enqueue(db, "t.sleep", {"seconds": 30.0}, count=5, queue="q")
    db.wait_for("select count(*)::int from effects", 3, 20)
    [line] = cli("queues", "list", "--json").document["queues"]
    assert (line["max_running"], line["running"]) == (3, 3)


async def test_orders_from_python_belong_to_the_callers_transaction(db: Database) -> None:
    with db.connect(autocommit=False) as conn:
        assert pause_queue(conn, "q", by="ann") is True
        set_queue(conn, "q", max_running=4)
        conn.rollback()
        assert queue_settings(conn) == []
        wrong: dict[str, Callable[[], object]] = {
            "max_running: ": lambda: set_queue(conn, "q", max_running=0),
            "max_running: or rate_limit": lambda: set_queue(conn, "q"),
            "rate_limit: ": lambda: set_queue(conn, "q", rate_limit=0),
            "rate_period: is nan": lambda: set_queue(conn, "q", rate_limit=1, rate_period=float("nan")),
            "rate_period: must be a number": lambda: set_queue(conn, "q", rate_limit=1, rate_period="1"),  # type: ignore[call-overload]
            "what: ": lambda: unset_queue(conn, "q", what="all"),  # type: ignore[call-overload]
            "queue: ": lambda: pause_queue(conn, ""),
        }
        for named, call in wrong.items():
            with pytest.raises(InvalidQueue, match=named):
                call()
        assert conn.execute("select 1").fetchone() == (1,), "the transaction can go on"
        with pytest.raises(InvalidQueue, match="conn"):
            pause_queue("postgresql://", "q")  # type: ignore[call-overload]
    async with await db.aconnect() as conn:
        assert await pause_queue(conn, "q") is True
        await set_queue(conn, "q", max_running=4)
        [one] = await queue_settings(conn)
        assert (one.name, one.paused, one.max_running, one.running) == ("q", True, 4, 0)
        assert await resume_queue(conn, "q") is True
        await set_queue(conn, "q", rate_limit=10, rate_period=timedelta(minutes=1))
        assert await unset_queue(conn, "q", what="max_running") is True
        [one] = await queue_settings(conn)
        assert (one.max_running, one.rate_limit, one.rate_period_s) == (None, 10, 60.0)
        assert await unset_queue(conn, "q") is True
        assert await unset_queue(conn, "q") is False
        with pytest.raises(SchemaMissing):
            await pause_queue(conn, "q", schema="elsewhere")
