"""Debian packages of any suite, fetched by the machine's own apt and from its own mirror.

apt gets a state of its own for each suite, so the host's lists and packages stay as they are.
"""

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Final

KEYS: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_PATIENCE_S: Final = 300


class NotHad(Exception):
    """Packages could not be fetched or installed; the text says which and why."""


def run(*command: str | os.PathLike[str], timeout_s: float = _PATIENCE_S, cwd: Path | None = None) -> str:
    """The output of *command*. Raises NotHad with the end of what it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd=cwd)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotHad(f"{command[0]}: {error}") from error
    if done.returncode:
        raise NotHad(
            f"{' '.join(map(str, command[:4]))} ...: exit code {done.returncode}: {done.stderr[-600:].strip()}"
        )
    return done.stdout


def mirror() -> str:
    """Where this machine's apt finds Debian."""
    for path in (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")):
        if path.exists() and (
            found := re.search(r"^(?:URIs:|deb(?: \[.*?\])?)\s+(\S+)", path.read_text(), re.MULTILINE)
        ):
            return found[1]
    raise NotHad("no mirror of Debian in /etc/apt: is this Debian?")


def install(*packages: str) -> None:
    """Install what is not there, from the host's own suite, without starting any service."""
    missing = [name for name in packages if subprocess.run(["dpkg", "-s", name], capture_output=True).returncode]
    if not missing:
        return
    command = ("apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *missing)
    try:
        run(*command)
    except NotHad:
        run("apt-get", "update", "--quiet")
        run(*command)


def unpack(suite: str, into: Path, *packages: str, state: Path) -> None:
    """Put the files of *packages* of *suite*, without what they depend on, under *into*."""
    apt = _apt(suite, state)
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        run("apt-get", *apt, "download", *packages, cwd=Path(scratch))
        for archive in Path(scratch).glob("*.deb"):
            run("dpkg-deb", "--extract", archive, into)


def _apt(suite: str, state: Path) -> list[str]:
    home = state / f"apt-{suite}"
    (home / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (home / "cache" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    (home / "status").touch()
    sources = home / "sources.list"
    options = [
        "--quiet=2",
        *("-o", f"Dir::State={home}", "-o", f"Dir::State::lists={home / 'lists'}"),
        *("-o", f"Dir::State::status={home / 'status'}", "-o", f"Dir::Cache={home / 'cache'}"),
        *("-o", f"Dir::Etc::sourcelist={sources}", "-o", "Dir::Etc::sourceparts=/dev/null"),
        *("-o", "Dir::Etc::preferencesparts=/dev/null", "-o", "APT::Sandbox::User=root"),
    ]
    if not sources.exists():
        line = f"deb [signed-by={KEYS} check-valid-until=no] {mirror()} {suite} main\n"
        fresh = home / "sources.new"
        fresh.write_text(line)
        run("apt-get", *options, "-o", f"Dir::Etc::sourcelist={fresh}", "update")
        fresh.rename(sources)
    return options
