"""Fixtures of tests/deploy: the engine, and the shipped compose file brought up with it."""

import os
import socket
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.deploy.engine import docker, images
from tests.deploy.engine.debian import NotHad
from tests.deploy.stack import Stack, clean_copy
from tests.support.tools import missing


@pytest.fixture(scope="session")
def engine() -> set[str]:
    """An engine with the base images; the names of images that could not be had."""
    try:
        if not os.environ.get("CI"):  # elsewhere nobody's machine gets an engine unasked
            subprocess.run(["docker", "compose", "version"], env=docker.environment(), check=True, capture_output=True)
            subprocess.run(["docker", "version"], env=docker.environment(), check=True, capture_output=True)
        docker.start()
        return images.ensure()
    except (NotHad, OSError, subprocess.CalledProcessError) as error:
        missing(f"a Docker engine: start one, or run `python -m tests.deploy.engine images` as root ({error})")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def stack(engine: set[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The whole of compose.yaml, from a clean copy, up and healthy."""
    checkout = clean_copy(tmp_path_factory.mktemp("checkout"))
    one = Stack(
        "deploytest",
        checkout,
        DASHBOARD_PORT=free_port(),
        PROMETHEUS_PORT=free_port(),
        GRAFANA_PORT=free_port(),
    )
    one.close()  # of a run that was cut off
    try:
        one.compose("up", "--build", "--wait")
        yield one
    finally:
        one.close()


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Show a measured figure in the test's output, whatever pytest captures."""

    def show(text: str) -> None:
        with capsys.disabled():
            print(f"\n    {text}", flush=True)

    return show
