"""B45: nothing of the old release is lost or done twice while both run, and going back works or is refused."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor import exits
from supervisor.db.migrate import known_version
from tests.support.database import Database
from tests.support.jobs import enqueue
from tests.support.service import Service
from tests.support.sizes import FULL
from tests.upgrade import releases

BOTH_RUN_S = 120.0 if FULL else 3.0
KNOWN = known_version()
# What tells of an error that comes again and again, whoever logs it.
_LOOPS = ("refused", "failed", "part_ended", "unreachable", "delayed")

Start = Callable[..., Service]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start services of any release; all are gone when the test ends."""
    started: list[Service] = []

    def one(db: Database, release: releases.Release, **options: Any) -> Service:
        options = {"processes": 1, "run_dir": tmp_path / f"run-{len(started)}", "retry_base_s": 0.05, **options}
        fresh = Service(db, root=release.root, name=f"s{len(started)}", **options)
        started.append(fresh)
        fresh.start()
        return fresh

    yield one
    for service in reversed(started):
        service.close()


def everything(db: Database) -> list[Any]:
    """The schema: tables, columns, functions with their text, what was applied."""
    return db.rows(
        "select attrelid::regclass::text, attname::text, atttypid::regtype::text from pg_attribute"
        " where attrelid in (select oid from pg_class where relnamespace = 'supervisor'::regnamespace) and attnum > 0"
        " union all select 'function', oid::regprocedure::text, md5(prosrc) from pg_proc"
        " where pronamespace = 'supervisor'::regnamespace"
        " union all select 'migration', version::text, concat(name, applied_at, functions) from supervisor.migration"
        " order by 1, 2, 3"
    )


def trouble(service: Service) -> list[Any]:
    # Jobs that fail as they were told to are no trouble of the service's.
    said = [event for event in service.log if event["event"] not in ("job.failed", "job.dead")]
    return [event for event in said if event["event"].endswith(_LOOPS) or event.get("level") == "error"]


@pytest.mark.timeout(600 if FULL else 120)
def test_both_releases_enqueue_and_run_during_a_migration(blank_db: Database, start: Start, tmp_path: Path) -> None:
    db = blank_db
    db.execute(
        "create table effects (job_id bigint, kind text, attempt int, pid int, at timestamptz default now(), note text)"
    )
    old, new = releases.previous(tmp_path), releases.newer(tmp_path)
    print(f"old: {old.what}; new: {new.what}")
    assert old.command(db, "migrate").returncode == 0
    older = [start(db, old), start(db, old)]
    for service in older:
        service.wait_ready()

    # Every state there is, by the old release.
    done = enqueue(db, "t.effect", count=20)
    [dead] = enqueue(db, "t.fail", max_attempts=1)
    [cancelled, later] = enqueue(db, "t.effect", count=2, delay=3600.0)
    again = enqueue(db, "t.fail", {"times": 2}, count=5)
    # Between the old workers and this, so that it is running while the schema changes.
    running = enqueue(db, "t.sleep", {"seconds": 2.0}, count=4)
    [strange] = enqueue(db, "release.nine.only")
    assert old.command(db, "jobs", "cancel", str(cancelled)).returncode == 0
    db.wait_for("select count(*)::int from effects where note = 'start'", 4)
    db.wait_for("select status from supervisor.jobs where id = %s", "dead", params=[dead])

    producers = [
        old.producer(db, "t.effect", BOTH_RUN_S + 1, 0.02),
        new.producer(db, "t.effect_sync", BOTH_RUN_S, 0.02),
    ]
    db.wait_for("select count(*) > 50 from effects", True)
    migrated = new.command(db, "migrate")
    assert migrated.returncode == 0, migrated.stderr
    assert f"from version {old.schema_version} to {KNOWN + 1}" in migrated.stdout
    newer = [start(db, new), start(db, new)]
    for service in newer:
        service.wait_ready()
    running += enqueue(db, "t.sleep", {"seconds": 0.3}, count=400)  # more than all but the last can hold
    added: list[int] = []
    for producer in producers:
        said, _ = producer.communicate(timeout=BOTH_RUN_S + 30)
        assert producer.returncode == 0
        added += [int(word) for word in said.split()]
    assert len(added) > 100 * BOTH_RUN_S / 3

    wanted = {*done, *again, *running, *added}
    db.wait_for("select count(*)::int from supervisor.history", len(wanted), 30)
    assert db.effects("done") == dict.fromkeys(wanted, 1), "each once"
    assert db.effects("failed") == {dead: 1, **dict.fromkeys(again, 2)}
    left: dict[int, str] = dict(db.rows("select id, status from supervisor.jobs where status <> 'done'"))
    assert left == {dead: "dead", cancelled: "cancelled", later: "queued", strange: "queued"}
    assert db.value("select sum(crashes)::int from supervisor.jobs") == 0
    # What nobody here will take is said and shown.
    assert "release.nine.only" in db.value("select last_error from supervisor.jobs where id = %s", [strange])
    for service in (*older, *newer):
        assert trouble(service) == []
        assert service.events("worker.exited") == []
        took_part = db.value("select count(*) from effects where pid = any(%s)", [service.worker_pids()])
        assert took_part > 0, service.tail()

    # An old one that is started only now says so, and works.
    late = start(db, old)
    late.wait_ready()
    said_newer = late.wait_event("schema.newer")
    assert str(KNOWN + 1) in said_newer["reason"]
    for service in (*older, *newer):
        assert service.stop() == exits.OK
    [last] = enqueue(db, "t.effect")
    db.wait_for("select status from supervisor.jobs where id = %s", "done", params=[last])
    assert late.stop() == exits.OK
    assert trouble(late) == []


def test_an_older_schema_is_refused_with_the_remedy(db: Database, start: Start, tmp_path: Path) -> None:
    """It exits at once, by a code that says "configuration": a platform shows it, instead of jobs that fail."""
    new = releases.newer(tmp_path)
    before = everything(db)
    refused = start(db, new)
    assert refused.wait_exit(20) == exits.CONFIG
    assert "run `supervisor migrate`" in refused.wait_event("supervisor.refused")["reason"]
    assert everything(db) == before
    migrating = start(db, new, env={"PYTHONUNBUFFERED": "1"})
    assert migrating.wait_exit(20) == exits.CONFIG, "again: it never migrates by itself"
    assert new.command(db, "migrate").returncode == 0
    welcome = start(db, new)
    welcome.wait_ready()
    assert welcome.stop() == exits.OK


def test_an_older_migrate_leaves_a_newer_schema_alone(db: Database, start: Start, tmp_path: Path) -> None:
    new, old = releases.newer(tmp_path), releases.previous(tmp_path)
    assert new.command(db, "migrate").returncode == 0
    before = everything(db)
    for words in (("migrate",), ("run", "--migrate")):
        refused = old.command(db, *words)
        assert refused.returncode == exits.CONFIG, refused.stderr
        assert f"version {KNOWN + 1}" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert everything(db) == before


def test_releases_with_the_same_schema_version_do_not_take_turns_with_their_functions(
    db: Database, start: Start, tmp_path: Path
) -> None:
    """Deploys that each migrate at their start: the newer release's functions stay, the older one runs on them."""
    new, old = releases.renewed(tmp_path), releases.older(tmp_path)
    assert start(db, new).wait_exit(20) == exits.CONFIG, "functions that it may miss"
    assert new.command(db, "migrate").returncode == 0
    before = everything(db)
    told = old.command(db, "migrate")
    assert told.returncode == 0
    assert "9.0.0" in told.stdout
    assert everything(db) == before
    service = start(db, old)
    service.wait_ready()
    [job] = enqueue(db, "t.effect")
    db.wait_for("select status from supervisor.jobs where id = %s", "done", params=[job])
    assert service.stop() == exits.OK
    assert trouble(service) == []
