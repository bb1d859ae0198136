"""`supervisor doctor` as a process: its exit codes, what it says without a database, and what it never says."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from supervisor import exits, grace
from supervisor.doctor import CHECKS, Level, examine
from supervisor.doctor.report import Report
from supervisor.settings import Settings
from tests.doctor.conftest import run_command
from tests.support.database import Database
from tests.support.faketime import FAKETIME, environment
from tests.support.servers import Server
from tests.support.service import ROOT, password_of
from tests.support.tools import missing


def document(address: str, words: str = "", **env: str) -> tuple[int, dict[str, Any]]:
    done = run_command(f"supervisor doctor --json {words}".strip(), address, **env)
    assert done.stdout.count("\n") == 1, done.stderr
    return done.returncode, json.loads(done.stdout)


def found(document: dict[str, Any], check: str, level: str) -> list[str]:
    return [
        f"{one['what']} -> {one['remedy']}"
        for one in document["findings"]
        if (one["check"], one["level"]) == (check, level)
    ]


def test_the_page_names_every_check() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text()
    named = re.findall(r"^\| `(\w+)` \| ", page.partition("| check |")[2], re.MULTILINE)
    assert {check.name for check in CHECKS} | {"handlers", "database"} == set(named)


def test_exit_codes_for_scripts(sound: Server, db: Database) -> None:
    known = {"SUPERVISOR_HANDLERS": "tests.support.handlers"}
    code, report = document(db.conninfo, **known)
    assert (code, report["worst"]) == (exits.OK, "note"), report
    assert document(db.conninfo, "--fail-on note", **known)[0] == exits.WARNINGS
    db.execute("alter table supervisor.job set (fillfactor = 100)")
    code, report = document(db.conninfo, **known)
    assert (code, report["worst"], report["counts"]["warning"]) == (exits.WARNINGS, "warning", 1)
    assert document(db.conninfo, "--fail-on problem", **known)[0] == exits.OK
    db.execute("alter table supervisor.job set (autovacuum_enabled = off)")
    assert document(db.conninfo, **known)[0] == exits.PROBLEMS
    assert document(db.conninfo, "--fail-on never", **known)[0] == exits.OK
    shown = run_command("supervisor doctor --quiet", db.conninfo, **known)
    assert shown.returncode == exits.PROBLEMS
    assert 'do: `alter table "supervisor"."job" reset (autovacuum_enabled)`' in shown.stdout
    assert "\nok " not in shown.stdout
    assert shown.stdout.splitlines()[-1].startswith("1 problem, 1 warning, ")


def test_without_a_database_it_says_what_else_it_could_check() -> None:
    code, report = document("postgresql://app:hunter2secret@127.0.0.1:1/none", SUPERVISOR_TERMINATION_GRACE_S="20")
    assert code == exits.PROBLEMS
    [away] = found(report, "database", "problem")
    assert "cannot be asked: connection failed" in away
    assert len(found(report, "drain", "warning")) == 1
    assert {"version", "listening", "leases"} <= set(report["skipped"])
    assert "hunter2secret" not in json.dumps(report)


@pytest.mark.parametrize("form", ["{0}", "{0}&application_name=x"])
def test_a_wrong_password_is_never_shown(db: Database, form: str) -> None:
    """B41, with every character that breaks hand-made addresses."""
    address = form.format(db.conninfo.replace("p%40ss", "wrong%40ss"))
    for words in ("", "--json"):
        done = run_command(f"supervisor doctor {words}".strip(), address)
        assert done.returncode == exits.PROBLEMS
        assert "password authentication failed" in done.stdout
        for secret in (password_of(address), "wrong@ss", "wrong%40ss"):
            assert secret not in done.stdout + done.stderr


def test_settings_that_cannot_be_used_are_findings(db: Database) -> None:
    code, report = document(db.conninfo, SUPERVISOR_LEASE_S="-1", SUPERVISOR_POOL_SIZE="many")
    assert code == exits.PROBLEMS
    problems = found(report, "settings", "problem")
    assert len(problems) == 2
    assert any("SUPERVISOR_LEASE_S=-1" in line for line in problems)


def test_settings_that_do_not_fit_together(db: Database) -> None:
    _, report = document(
        db.conninfo,
        SUPERVISOR_LEASES_S="10",
        SUPERVISOR_STATEMENT_TIMEOUT_S="60",
        SUPERVISOR_WAKE="false",
        SUPERVISOR_RETRY_CAP_S=str(20 * 86400),
        SUPERVISOR_KEEP_DEAD_DAYS="10",
    )
    warnings = found(report, "settings", "warning")
    assert len(warnings) == 2
    assert "SUPERVISOR_LEASES_S is not a setting and has no effect: is SUPERVISOR_LEASE_S meant?" in warnings[0]
    assert "set SUPERVISOR_STATEMENT_TIMEOUT_S to 15" in warnings[1]
    assert len(found(report, "settings", "note")) == 2
    _, report = document(db.conninfo, SUPERVISOR_STATEMENT_TIMEOUT_S="15")
    assert found(report, "settings", "warning") == []


def test_a_drain_that_is_longer_than_the_platforms_patience(db: Database) -> None:
    """B07, by the same sum as the shipped manifests."""
    needed = grace.needed_s(25)
    _, report = document(db.conninfo, SUPERVISOR_TERMINATION_GRACE_S="30")
    [told] = found(report, "drain", "warning")
    assert f"SUPERVISOR_TERMINATION_GRACE_S to {needed:g}" in told
    _, report = document(db.conninfo, SUPERVISOR_TERMINATION_GRACE_S=f"{needed:g}")
    assert found(report, "drain", "ok")


def test_handlers_that_do_not_import_and_kinds_they_do_not_have(db: Database, tmp_path: Path) -> None:
    db.execute("insert into supervisor.lane (queue, priority) values ('default', 0)")
    db.execute("insert into supervisor.job (kind) values ('t.noop'), ('of.nobody')")
    (tmp_path / "noisy_handlers.py").write_text("print('hello')\nimport sys\nsys.exit(3)\n")
    _, report = document(db.conninfo, SUPERVISOR_HANDLERS="noisy_handlers", PYTHONPATH=f"{tmp_path}:.")
    [told] = found(report, "handlers", "warning")
    assert "noisy_handlers" in told
    assert "SystemExit: 3" in told
    _, report = document(db.conninfo, SUPERVISOR_HANDLERS="tests.support.handlers")
    assert found(report, "handlers", "warning") == []
    [told] = found(report, "kinds", "warning")
    assert "jobs of kind of.nobody wait" in told


def test_a_host_whose_clock_is_wrong(db: Database, tmp_path: Path) -> None:
    if not FAKETIME.exists():
        missing("libfaketime is missing: apt install faketime")
    clock = tmp_path / "clock"
    for shift, side in (("-90s", "1 min 30 s behind"), ("+90s", "1 min 30 s ahead of")):
        clock.write_text(f"{shift}\n")
        _, report = document(db.conninfo, "--role reader", **environment(clock))
        [told] = found(report, "clock", "warning")
        assert f"this host's clock is {side} the database's" in told
    clock.write_text("+0s\n")
    _, report = document(db.conninfo, "--role reader", **environment(clock))
    assert found(report, "clock", "ok")


async def local(cgroup: Path, **settings: Any) -> Report:
    chosen = Settings.load(database_url="postgresql://x@127.0.0.1:1/x", **settings)
    return await examine(None, chosen, unreachable="not asked", cgroup=cgroup)


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
async def test_workers_that_may_grow_beyond_the_container(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)

    async def levels(limit: str, **settings: Any) -> list[tuple[Level, str]]:
        file.write_text(f"{limit}\n")
        return [(f.level, f.what) for f in (await local(tmp_path, **settings)).findings if f.check == "memory"]

    [(level, what)] = await levels(str(512 * 2**20), processes=4, max_rss_mb=256)
    assert level is Level.WARNING
    assert "1024 MiB in all, and this container may use 512 MiB" in what
    assert [level for level, _ in await levels(str(512 * 2**20), processes=4, max_rss_mb=100)] == [Level.OK]
    assert [level for level, _ in await levels(str(512 * 2**20), processes=4)] == [Level.NOTE]
    assert [level for level, _ in await levels("max" if name == "memory.max" else str(2**63 - 4096))] == [Level.OK]
