"""Handlers declared in a test are gone after it; real libraries as in tests/adapters."""

from collections.abc import Iterator

import pytest

from supervisor.handler import _registry
from tests.support.library_fixtures import django_conn, engine, open_async, shop

__all__ = ["django_conn", "engine", "open_async", "shop"]


@pytest.fixture(autouse=True)
def kinds() -> Iterator[None]:
    before = dict(_registry)
    yield
    _registry.clear()
    _registry.update(before)
