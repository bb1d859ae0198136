"""The examples of docs/adapters.md and docs/testing.md run as they are printed."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from django.db import models
from sqlalchemy import Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from supervisor import handler
from supervisor.handler import _registry
from tests.support.database import Database
from tests.support.libraries import Async, address

DOCS = Path(__file__).parents[2] / "docs"


class Customer(models.Model):
    id: Any = models.IntegerField(primary_key=True)

    class Meta:
        app_label = "shop"
        db_table = "customer"
        managed = False


class Base(DeclarativeBase):
    pass


class Mapping(Base):
    __tablename__ = "customer"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


@pytest.fixture(autouse=True)
def kinds() -> Iterator[None]:
    before = dict(_registry)
    yield
    _registry.clear()
    _registry.update(before)


def examples(page: str) -> list[str]:
    found = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"no examples in {page}"
    return [textwrap.dedent(one) for one in found]


async def execute(text: str, **names: Any) -> None:
    code = compile(text, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)
    if inspect.isawaitable(result):
        await result


def run_sync(text: str, **names: Any) -> None:
    exec(compile(text, "example", "exec"), names)


def test_each_library_has_its_example(django_conn: Any, engine: Engine, shop: Database) -> None:
    shop.execute("create table customer (id int primary key)")
    on_django, on_session, *_ = examples("adapters.md")
    run_sync(on_django, Customer=Customer)
    run_sync(on_session, Customer=Mapping, engine=engine)
    assert shop.rows("select id from customer order by id") == [(7,), (8,)]
    assert shop.rows("select payload from supervisor.job order by id") == [({"user_id": 7},), ({"user_id": 8},)]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_the_awaited_ones_too(driver: str, open_async: Async, shop: Database) -> None:
    shop.execute("create table customer (id int primary key)")
    _, _, on_async_session, on_asyncpg = examples("adapters.md")
    at = address(shop)
    async with open_async.engine(driver) as engine:
        await execute(on_async_session, Customer=Mapping, async_engine=engine)
    async with asyncpg.create_pool(
        host=at["host"], port=int(at["port"]), user=at["user"], password=at.get("password"), database=at["dbname"],
        min_size=1, max_size=1,
    ) as pool:  # fmt: skip
        await execute(on_asyncpg, pool=pool)
    assert shop.rows("select id from customer order by id") == [(9,), (10,)]
    assert shop.rows("select payload from supervisor.job order by id") == [({"user_id": 9},), ({"user_id": 10},)]


def test_the_examples_of_testing(shop: Database) -> None:
    @handler("email.welcome")
    def send_welcome(user_id: int, lang: str = "en") -> None: ...

    @handler("fails", max_attempts=3)
    def always_fails() -> None:
        raise ValueError

    alone, jobs, plugin = examples("testing.md")
    run_sync(alone, send_welcome=send_welcome, conn=shop.connect(autocommit=False))
    run_sync(jobs, send_welcome=send_welcome, always_fails=always_fails)
    assert plugin == 'pytest_plugins = ["supervisor.testing.pytest"]\n'
