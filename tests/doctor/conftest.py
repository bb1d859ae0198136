"""What the doctor's tests share: asking it, and doing what it says.

    patient(db)  --ask(...)--> Report  --cure(finding)--> the commands of the remedy, as printed

`sound` is a server that would survive a crash, as real ones do; the tests' own servers trade that for speed.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from supervisor.db.examine import asking
from supervisor.doctor import Finding, Level, Limits, Report, examine
from supervisor.doctor.report import commands
from supervisor.settings import Settings
from tests.support.database import Database
from tests.support.servers import Server
from tests.support.service import ROOT


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("SUPERVISOR_"):
            monkeypatch.delenv(name)


@pytest.fixture
def setting(server: Server) -> Iterator[Callable[..., None]]:
    """Change settings of the server as a DBA would; they are as before when the test ends."""
    changed: set[str] = set()

    def put(**values: str) -> None:
        for name, value in values.items():
            changed.add(name)
            server.execute(f"alter system set {name} = {value}")
        server.reload()

    yield put
    server.start()
    for name in changed:
        server.execute(f"alter system reset {name}")
    server.reload()


@pytest.fixture
def sound(server: Server, setting: Callable[..., None]) -> Server:
    """The server, with what a crash would need."""
    setting(fsync="on", full_page_writes="on")
    return server


class Patient:
    """A database that is examined."""

    def __init__(self, db: Database, address: str | None = None) -> None:
        self.db = db
        self.address = address or db.conninfo

    def ask(
        self,
        *,
        limits: Limits | None = None,
        kinds: frozenset[str] | None = None,
        purpose: str = "worker",
        listen: bool = False,
        **settings: Any,
    ) -> Report:
        """Examine it, as the command does; *listen*: try notifications too."""
        chosen = Settings.load(database_url=self.address, processes=settings.pop("processes", 2), **settings)

        async def run() -> Report:
            async with asking(self.address, name="pg-supervisor doctor", patience_s=5, connect_timeout_s=5) as conn:
                direct = chosen.listen_database_url
                address = direct.get_secret_value() if direct else self.address
                return await examine(
                    conn, chosen, address=address if listen else None, kinds=kinds, purpose=purpose, limits=limits
                )

        return asyncio.run(run())

    def finds(self, check: str, level: Level, *words: str, **how: Any) -> Finding:
        """The one finding of that check and level that has all these words."""
        report = self.ask(**how)
        found = matching(report, check, level, *words)
        assert len(found) == 1, f"{len(found)} findings of {check} ({level}) with {words} in {report.findings}"
        return found[0]

    def sees_nothing(self, check: str, level: Level, *words: str, **how: Any) -> None:
        report = self.ask(**how)
        assert matching(report, check, level, *words) == [], report.findings

    def cure(self, finding: Finding) -> None:
        """Run the commands of the remedy, each as it stands."""
        given = list(commands(finding.remedy))
        assert given, f"the remedy has no command: {finding.remedy}"
        for command in given:
            if command.startswith("supervisor "):
                run_command(command, self.db.conninfo)
            else:
                with psycopg.connect(self.db.server.superuser_conninfo(self.db.name), autocommit=True) as conn:
                    conn.execute(command.encode())

    def is_cured_of(self, check: str, level: Level, *words: str, **how: Any) -> Finding:
        """The finding is there; its remedy is run as printed; it is gone."""
        finding = self.finds(check, level, *words, **how)
        self.cure(finding)
        self.sees_nothing(check, level, *words, **how)
        return finding


def matching(report: Report, check: str, level: Level, *words: str) -> list[Finding]:
    return [
        finding
        for finding in report.findings
        if finding.check == check and finding.level is level and all(word in finding.what for word in words)
    ]


def run_command(command: str, address: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `supervisor` as it is printed."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SUPERVISOR_", "PG"))}
    return subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=ROOT,
        env={**kept, "PYTHONPATH": str(ROOT), "SUPERVISOR_DATABASE_URL": address, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def patient(db: Database) -> Patient:
    return Patient(db)
