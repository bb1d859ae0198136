"""Trees of other releases, each a directory whose `supervisor` is that release and whose `tests` are these.

    previous   the package of an earlier commit: the last one but one that changed it, or TEST_UPGRADE_FROM
    older      this package, said to be 0.0.9
    renewed    this package, said to be 9.0.0, with a function changed and no migration more
    newer      this package, said to be 9.1.0, with one migration more, which only adds

Without history (a shallow clone), or where a migration that is not released yet was edited since, `previous`
is `older`.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from tests.support.database import Database
from tests.support.service import ROOT, Service

_MIGRATION = """\
alter table {schema}.job add column tenant text;
alter table {schema}.job add column hurry integer not null default 0;
create table {schema}.tenant (name text primary key);
"""
_FUNCTION = "create or replace function {schema}.renewed() returns integer language sql as $fn$ select 9 $fn$;\n"


@dataclass(frozen=True)
class Release:
    """One release in its directory."""

    root: Path
    what: str

    @property
    def schema_version(self) -> int:
        """The newest schema version that it knows."""
        return max(int(file.name[:4]) for file in (self.root / "supervisor/db/migrations").glob("*.sql"))

    def command(self, db: Database, *words: str) -> subprocess.CompletedProcess[str]:
        """Run its command line."""
        return subprocess.run(
            [sys.executable, "-m", "supervisor", *words],
            cwd=self.root, env=Service(db, root=self.root).env, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def producer(self, db: Database, kind: str, seconds: float, pause_s: float) -> subprocess.Popen[str]:
        """Enqueue with its client for so long; the ids are on its standard output."""
        return self._started(db, "tests.upgrade.producer", kind, seconds, pause_s)

    def publisher(self, db: Database, topic: str, seconds: float, pause_s: float) -> subprocess.Popen[str]:
        """Publish with its client for so long; the ids of the events are on its standard output."""
        return self._started(db, "tests.upgrade.publisher", topic, seconds, pause_s)

    def _started(self, db: Database, module: str, what: str, seconds: float, pause_s: float) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", module, what, str(seconds), str(pause_s)],
            cwd=self.root, env=Service(db, root=self.root).env, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip


def previous(place: Path) -> Release:
    """The package of an earlier commit."""
    commit = os.environ.get("TEST_UPGRADE_FROM") or _commit_before()
    if commit is None or not _same_migrations(commit):
        return older(place)
    root = place / "previous"
    root.mkdir()
    with tarfile.open(fileobj=BytesIO(_git("archive", commit, "supervisor") or b"")) as archive:
        # The filter is known from Python 3.11.4 on.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        archive.extractall(root)
    (root / "tests").symlink_to(ROOT / "tests")
    return Release(root, f"commit {commit[:8]}")


def older(place: Path) -> Release:
    """This package, under an older version."""
    return Release(_copy(place / "older", "0.0.9"), "this package as 0.0.9")


def renewed(place: Path) -> Release:
    """This package with other functions at the same schema version."""
    root = _copy(place / "renewed", "9.0.0")
    (root / "supervisor/db/functions/999_renewed.sql").write_text(_FUNCTION)
    return Release(root, "this package as 9.0.0, with a function more")


def newer(place: Path) -> Release:
    """This package with a migration more."""
    root = _copy(place / "newer", "9.1.0")
    release = Release(root, "this package as 9.1.0, with a migration more")
    (root / f"supervisor/db/migrations/{release.schema_version + 1:04}_tenants.sql").write_text(_MIGRATION)
    (root / "supervisor/db/functions/999_renewed.sql").write_text(_FUNCTION)
    return release


def _copy(root: Path, version: str) -> Path:
    shutil.copytree(ROOT / "supervisor", root / "supervisor", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "tests").symlink_to(ROOT / "tests")
    file = root / "supervisor/release.py"
    text = file.read_text()
    changed = text.replace("VERSION: Final = _version()", f'VERSION: Final = "{version}"')
    assert changed != text, "where is the version?"
    file.write_text(changed)
    return root


def _commit_before() -> str | None:
    found = (_git("log", "-2", "--format=%H", "--", "supervisor") or b"").decode().split()
    return found[1] if len(found) == 2 else None


def _same_migrations(commit: str) -> bool:
    """Whether every migration of *commit* is here as it was there."""
    names = _git("ls-tree", "--name-only", commit, "supervisor/db/migrations/")
    if not names:
        return False
    return all(
        (ROOT / name).is_file() and _git("show", f"{commit}:{name}") == (ROOT / name).read_bytes()
        for name in names.decode().split()
        if name.endswith(".sql")
    )


def _git(*words: str) -> bytes | None:
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
