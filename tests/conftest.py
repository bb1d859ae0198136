"""Fixtures of all tests.

    servers (session)  ->  server  ->  db         a fresh migrated database
                                   ->  blank_db   an empty one
                                   ->  roles      the queue's database roles on db
                                   ->  service    starts `supervisor run` on db, as often as called

`server` is PostgreSQL 18, or what TEST_PG says. A test marked `@pytest.mark.pg("15", "16", "18")`,
or one that asks for `each_server`, runs once on each.

An `async def` test runs on a fresh uvloop, as the service does.
"""

import asyncio
import inspect
import os
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.support import proc
from tests.support.database import Database
from tests.support.roles import Roles
from tests.support.servers import VERSIONS, Server, Servers, place
from tests.support.service import Service

SERVICES = pytest.StashKey[list[Service]]()


def pytest_configure(config: pytest.Config) -> None:
    proc.adopt_orphans()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "pg_version" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("pg")
    if marker:
        versions = marker.args
    elif "each_server" in metafunc.fixturenames:
        versions = VERSIONS
    else:
        versions = (os.environ.get("TEST_PG", "18"),)
    metafunc.parametrize("pg_version", versions, ids=[f"pg{version}" for version in versions])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Small files last: with files side by side, they fill what the long ones leave at the end."""
    items.sort(key=lambda item: "unit" in item.path.parts)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += [("service log", one.tail(100)) for one in item.stash.get(SERVICES, [])]
    return report


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    found = Servers()
    yield found
    found.close()


@pytest.fixture
def server(servers: Servers, pg_version: str) -> Server:
    return servers.get(pg_version)


@pytest.fixture
def each_server(server: Server) -> Server:
    return server


@pytest.fixture
def db(server: Server) -> Iterator[Database]:
    found = Database.create(server)
    yield found
    found.drop()


@pytest.fixture
def blank_db(server: Server) -> Iterator[Database]:
    found = Database.create(server, migrated=False)
    yield found
    found.drop()


@pytest.fixture
def roles(db: Database) -> Iterator[Roles]:
    """The queue's roles on `db`, made, with logins for them."""
    found = Roles(db)
    found.make()
    yield found
    found.drop()


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """An empty directory that the account of servers can pass through, in memory if there is room."""
    with tempfile.TemporaryDirectory(prefix="pgsv-", dir=place()) as made:
        os.chmod(made, 0o711)
        yield Path(made)


@pytest.fixture
def service(db: Database, request: pytest.FixtureRequest) -> Iterator[Callable[..., Service]]:
    """Start services on `db`: `service(processes=2, concurrency=5)`; all are gone when the test ends."""
    started = request.node.stash.setdefault(SERVICES, [])

    def start(**options: Any) -> Service:
        fresh = Service(db, **options)
        started.append(fresh)
        fresh.start()
        fresh.wait_ready()
        return fresh

    yield start
    for one in reversed(started):
        one.close()
