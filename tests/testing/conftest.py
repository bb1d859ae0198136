"""Handlers declared in a test are gone after it; `shop` has a table for effects in the caller's transaction."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

from supervisor.handler import _registry
from tests.support.database import Database
from tests.support.libraries import DJANGO_NAMES, Async, address, url


@pytest.fixture(autouse=True)
def kinds() -> Iterator[None]:
    before = dict(_registry)
    yield
    _registry.clear()
    _registry.update(before)


@pytest.fixture
def shop(db: Database) -> Database:
    db.execute("create table business (id int primary key)")
    return db


@pytest.fixture
def django_conn(shop: Database) -> Iterator[Any]:
    from django.db import connection

    at = address(shop)
    connection.close()
    connection.settings_dict.update({name: at.get(theirs, "") for name, theirs in DJANGO_NAMES.items()})
    yield connection
    connection.close()


@pytest.fixture
def engine(shop: Database) -> Iterator[Engine]:
    found = create_engine(url(shop, "psycopg"))
    yield found
    found.dispose()


@pytest.fixture
def open_async(shop: Database) -> Async:
    return Async(shop)
