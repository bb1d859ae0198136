"""Fault tests signal whole process trees: each service has a run directory of its own, so that none finds another's."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.database import Database
from tests.support.proxy import Proxy
from tests.support.service import Service

_numbers = itertools.count(1)


@pytest.fixture
def service(service: Callable[..., Service], tmp_path: Path) -> Callable[..., Service]:
    """As the general one: `service(processes=2, concurrency=5)`."""

    def start(**options: Any) -> Service:
        options.setdefault("run_dir", tmp_path / f"run-{next(_numbers)}")
        options.setdefault("health_port", "auto")
        return service(**options)

    return start


@pytest.fixture
def proxy(db: Database) -> Iterator[Proxy]:
    with Proxy(db.conninfo) as found:
        yield found
