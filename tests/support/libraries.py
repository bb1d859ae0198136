"""Django, SQLAlchemy and asyncpg on a test's database.

Each test's `shop` has a table `business` for the caller's own row; a job must exist exactly when that row does.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import django
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tests.support.database import Database

settings.configure(
    DATABASES={
        "default": {"ENGINE": "django.db.backends.postgresql"},
        "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    },
    ROOT_URLCONF="tests.support.django_urls",
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="of the tests",
    USE_TZ=True,
)
django.setup()

DJANGO_NAMES = {"NAME": "dbname", "HOST": "host", "PORT": "port", "USER": "user", "PASSWORD": "password"}


def address(db: Database) -> dict[str, Any]:
    """Host, port, user, password and dbname of *db*."""
    return {name: value for name, value in conninfo_to_dict(db.conninfo).items() if value}


def url(db: Database, driver: str) -> URL:
    """The address of *db* for SQLAlchemy."""
    at = address(db)
    return URL.create(f"postgresql+{driver}", at["user"], at.get("password"), at["host"], int(at["port"]), at["dbname"])


class Async:
    """What async tests open: each in its own event loop, so by a context manager and not by a fixture."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @asynccontextmanager
    async def engine(self, driver: str, **options: Any) -> AsyncIterator[AsyncEngine]:
        found = create_async_engine(url(self.db, driver), **options)
        try:
            yield found
        finally:
            await found.dispose()

    @asynccontextmanager
    async def asyncpg(self) -> AsyncIterator[Any]:
        at = address(self.db)
        conn = await asyncpg.connect(
            host=at["host"], port=int(at["port"]), user=at["user"], password=at.get("password"), database=at["dbname"]
        )
        try:
            yield conn
        finally:
            await conn.close()


def both(db: Database) -> tuple[list[int], list[int]]:
    """The ids of business rows and the `user_id` of jobs, as another connection sees them."""
    rows = [row[0] for row in db.rows("select id from business order by id")]
    jobs = [row[0] for row in db.rows("select (payload ->> 'user_id')::int from supervisor.job order by 1")]
    return rows, jobs
