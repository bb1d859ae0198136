"""An environment for each peer, made on demand under .venv-peers: a virtual environment, or a folder of npm.

Always true: the newest releases of a peer's packages; what is installed once is used again. `rm -r .venv-peers`
brings newer ones.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from bench.peers.registry import Peer
from bench.report import Say

ROOT: Final = Path(__file__).resolve().parents[2]
HOME: Final = ROOT / ".venv-peers"
# What the Node peers need; an older one on the path is passed over for one from npm.
_NODE: Final = (22, 18)
_NODE_PACKAGE: Final = "24"
_INSTALL_TIMEOUT_S: Final = 300


class PeerMissing(Exception):
    """A peer cannot be run on this machine; says why."""


@dataclass(frozen=True, slots=True)
class Installed:
    """How to start a peer's program, and which release it is."""

    peer: Peer
    command: tuple[str, ...]
    version: str

    @property
    def env(self) -> dict[str, str]:
        """The environment of its processes."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SUPERVISOR_", "PG"))}
        return {**kept, "PEER_HOME": str(HOME / self.peer.name), "NODE_ENV": "production"}


def install(peer: Peer, say: Say) -> Installed:
    """Make sure that *peer* is installed.

    Raises:
        PeerMissing: it cannot be.
    """
    if peer.kind == "here":
        return Installed(peer, (sys.executable, "-m", f"bench.peers.{peer.program}"), _own_version(peer))
    home = HOME / peer.name
    ready = home / "ready"
    if not ready.exists():
        say(f"installing {peer.name}")
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        if peer.kind == "python":
            _python(peer, home)
        else:
            _node(peer, home)
        ready.touch()
    if peer.kind == "python":
        python = home / "bin" / "python"
        asked = f"import importlib.metadata as m; print(m.version({peer.packages[0]!r}))"
        found = _run([str(python), "-c", asked], home).strip()
        return Installed(peer, (str(python), "-m", f"bench.peers.{peer.program}"), found)
    found = str(json.loads((home / "node_modules" / peer.packages[0] / "package.json").read_text())["version"])
    return Installed(peer, (_node_program(home), str(ROOT / "bench" / "peers" / peer.program)), found)


def _own_version(peer: Peer) -> str:
    try:
        return version("asyncpg") if peer.name == "bare" else version("psycopg")
    except PackageNotFoundError:
        raise PeerMissing(f"{peer.name} needs asyncpg: pip install 'pg-supervisor[bench]'") from None


def _python(peer: Peer, home: Path) -> None:
    if (found := python_for(peer.least)) is None:
        raise PeerMissing(
            f"{peer.name} needs Python {'.'.join(map(str, peer.least))}, and none is on the path or in pyenv"
        )
    _run([found, "-m", "venv", str(home)], ROOT)
    _run([str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input", *peer.packages], home)


def python_for(least: tuple[int, int]) -> str | None:
    """A Python that is new enough: this one wherever it will do, since interpreters are not what is compared."""
    return next((one for one in _pythons() if _version_of(one) >= least), None)


def _pythons() -> Iterator[str]:
    """This one, what is on the path, and what pyenv has though its shims do not choose it."""
    yield sys.executable
    names = ("python3.12", "python3.13", "python3.14")
    yield from filter(None, map(shutil.which, names))
    if pyenv := shutil.which("pyenv"):
        for name in names:
            for found in _said([pyenv, "whence", name]).split():
                yield str(Path(_said([pyenv, "prefix", found]).strip()) / "bin" / name)


def _said(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _version_of(python: str) -> tuple[int, int]:
    try:
        said = _said([python, "-c", "import sys, venv; print(*sys.version_info[:2])"]).split()
        return int(said[0]), int(said[1])
    except (ValueError, IndexError):
        return (0, 0)


def _node(peer: Peer, home: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise PeerMissing(f"{peer.name} needs npm: apt install npm")
    packages = [f"{package}@latest" for package in peer.packages]
    if _node_version("node") < _NODE:
        arch = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        packages.append(f"node-linux-{arch}@{_NODE_PACKAGE}")
    (home / "package.json").write_text('{"private": true}')
    _run([npm, "install", "--no-audit", "--no-fund", "--loglevel=error", *packages], home)


def _node_program(home: Path) -> str:
    brought = [*home.glob("node_modules/node-linux-*/bin/node")]
    return str(brought[0]) if brought else str(shutil.which("node"))


def _node_version(node: str) -> tuple[int, ...]:
    if shutil.which(node) is None:
        return (0, 0)
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"v(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _run(command: Sequence[str], place: Path) -> str:
    try:
        done = subprocess.run(
            command, cwd=place, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise PeerMissing(f"{command[0]} did not end within {_INSTALL_TIMEOUT_S} s") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise PeerMissing(f"{' '.join(command[:4])} ... failed: {said[-400:]}")
    return done.stdout
