"""Jobs at gates as operators meet them in the shell, and the same orders from Python."""

from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor import exits, release_order
from supervisor.errors import InvalidJob, SchemaMissing
from tests.e2e.test_cli import Cli
from tests.support.database import Database
from tests.support.jobs import enqueue
from tests.support.service import Service


@pytest.fixture
def cli(db: Database, tmp_path: Path) -> Cli:
    return Cli(tmp_path, SUPERVISOR_DATABASE_URL=db.conninfo)


def blocked(db: Database, key: str) -> tuple[int, int]:
    """One that fails for good and holds its key, and the next one of the key; a service runs."""
    [first] = enqueue(db, "t.fail", {"times": 99}, max_attempts=1, ordering_key=key, on_dead="hold")
    [second] = enqueue(db, "t.effect", {"note": key}, ordering_key=key)
    db.wait_for("select status from supervisor.jobs where id = %s", "dead", params=[first])
    return first, second


def test_a_dead_job_that_holds_its_key_is_shown_and_lets_it_go(
    cli: Cli, db: Database, service: Callable[..., Service]
) -> None:
    service(processes=1)
    first, second = blocked(db, "account:7")
    shown = cli("jobs", "show", str(first)).out
    assert "account:7" in shown
    assert "1 jobs wait behind it" in " ".join(shown.split())
    waits = " ".join(cli("jobs", "show", str(second)).out.split())
    assert f"its turn in its ordering key: none waits before it; job {first} has the key" in waits
    assert cli("jobs", "show", str(second), "--json").document["gate"]["holders"] == [first]
    [queue] = cli("status", "--json").document["queues"]
    assert (queue["waiting"], queue["scheduled"], queue["due"], queue["dead"]) == (1, 0, 0, 1)
    assert "waiting" in cli("status").out

    asked = cli("jobs", "release-order", "--key", "account:7", "--dry-run")
    assert asked.out == f"would release the keys of 1 jobs (ids {first})\n"
    cli("jobs", "release-order").refused(exits.USAGE, "filter")
    cli("jobs", "release-order", "--kind", "t.fail").refused(exits.USAGE, "1 jobs", "--yes")
    assert cli("jobs", "release-order", str(first)).out == "1 no longer hold their ordering keys\n"
    db.wait_for("select count(*) from effects where note = 'account:7'", 1)
    again = cli("jobs", "release-order", str(first), "999")
    assert again.code == exits.FAILED
    assert f"held no ordering key, or not dead: jobs {first}, 999" in again.err

    third, _ = blocked(db, "account:8")
    assert cli("jobs", "release-order", "--key", "account:8", "-y", "--json").document == {"released": 1, "missing": []}
    db.wait_for("select count(*) from effects where note = 'account:8'", 1)
    assert db.rows("select id, status from supervisor.dead_letter order by id") == [(first, "dead"), (third, "dead")]


async def test_the_same_from_python_in_the_callers_transaction(db: Database, service: Callable[..., Service]) -> None:
    service(processes=1)
    first, _ = blocked(db, "account:7")
    with db.connect(autocommit=False) as conn:
        assert release_order(conn, first) == 1
        conn.rollback()
    async with await db.aconnect() as aconn:
        assert await release_order(aconn, [first, 999]) == 1
        assert await release_order(aconn, [first]) == 0
    db.wait_for("select count(*) from effects where note = 'account:7'", 1)
    conn = db.connect()
    for wrong in (0, True, "7", [None]):
        with pytest.raises(InvalidJob, match="jobs"):
            release_order(conn, wrong)  # type: ignore[arg-type]
    with pytest.raises(SchemaMissing):
        release_order(conn, 1, schema="nowhere")


def test_scheduled_means_the_same_in_a_list_and_in_an_order(cli: Cli, db: Database) -> None:
    """A job that is due and waits at a gate is not scheduled, although it is parked; one that is due later is."""
    for _ in range(2):
        enqueue(db, "k", ordering_key="a")
    [later] = enqueue(db, "k", ordering_key="b", delay=3600)
    [plain] = enqueue(db, "k", delay=3600)
    listed = {one["id"] for one in cli("jobs", "list", "--status", "scheduled", "--json").document["jobs"]}
    assert listed == {later, plain}
    found = cli("jobs", "cancel", "--status", "scheduled", "--dry-run", "--json").document
    assert found["first"] == [later, plain]
    assert cli("jobs", "cancel", "--status", "scheduled", "-y", "--json").document["cancelled"] == 2
    assert db.statuses() == {"queued": 2, "cancelled": 2}
