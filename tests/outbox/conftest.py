"""Brokers of the session, and relays that do not outlive their test."""

import itertools
import os
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import Broker, Kafka, Nats, Rabbit
from tests.support.database import Database
from tests.support.relay import Role

ROLES = pytest.StashKey[list[Role]]()
_numbers = itertools.count(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += [(f"log of {one.command}", one.tail()) for one in item.stash.get(ROLES, [])]
    return report


@pytest.fixture(scope="session")
def brokers_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pgsv-brokers-", dir="/tmp", ignore_cleanup_errors=True) as made:
        yield Path(made)


@pytest.fixture(scope="session")
def nats_server(brokers_dir: Path) -> Iterator[Nats]:
    made = Nats(brokers_dir)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def nats(nats_server: Nats) -> Nats:
    """The session's server, running: a test that stopped it need not start it again."""
    nats_server.start()
    return nats_server


@pytest.fixture(scope="session")
def rabbit_server(brokers_dir: Path) -> Iterator[Rabbit]:
    made = Rabbit(brokers_dir)
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="session")
def kafka_server(brokers_dir: Path) -> Iterator[Kafka]:
    made = Kafka(brokers_dir)
    made.start()
    yield made
    made.close()


@pytest.fixture(params=["nats", "rabbit", "kafka"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each of the brokers in turn, running."""
    found: Broker = request.getfixturevalue(f"{request.param}_server")
    found.start()
    return found


@pytest.fixture
def name() -> str:
    """A name that no other test has: of topics, streams, consumers."""
    return f"t{os.getpid()}x{next(_numbers)}"


@pytest.fixture
def role(db: Database, request: pytest.FixtureRequest) -> Iterator[Callable[..., Role]]:
    """Start `supervisor relay` or `supervisor consume` on `db`: `role("relay", outbox_url=...)`."""
    started = request.node.stash.setdefault(ROLES, [])

    def start(command: str, database: Database | None = None, **settings: Any) -> Role:
        made = Role(database or db, command, **settings)
        started.append(made)
        made.start()
        return made

    yield start
    for one in started:
        one.close()
