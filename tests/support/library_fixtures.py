"""Connections of real libraries: `django_conn`, `engine` (SQLAlchemy on psycopg), `open_async` for the others.

`shop` is the database they are of, with a table for what a caller's transaction does besides.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

from tests.support.database import Database
from tests.support.libraries import DJANGO_NAMES, Async, address, url


@pytest.fixture
def shop(db: Database) -> Database:
    db.execute("create table business (id int primary key)")
    return db


@pytest.fixture
def django_conn(shop: Database) -> Iterator[Any]:
    """`django.db.connection` on *shop*."""
    from django.db import connection

    at = address(shop)
    connection.close()
    connection.settings_dict.update({name: at.get(theirs, "") for name, theirs in DJANGO_NAMES.items()})
    yield connection
    assert not connection.in_atomic_block
    connection.close()


@pytest.fixture
def engine(shop: Database) -> Iterator[Engine]:
    found = create_engine(url(shop, "psycopg"))
    yield found
    found.dispose()


@pytest.fixture
def open_async(shop: Database) -> Async:
    return Async(shop)
