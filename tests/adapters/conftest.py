"""Real libraries on a real server (tests/support/library_fixtures.py), and a handler to enqueue."""

from typing import Any

import pytest

from supervisor import handler
from supervisor.handler import Handler
from tests.support.library_fixtures import django_conn, engine, open_async, shop

__all__ = ["django_conn", "engine", "open_async", "shop"]


@pytest.fixture
def mail() -> Handler[Any]:
    def send(user_id: int, lang: str = "en") -> None: ...

    return handler("adapters.mail", queue="email", priority=2)(send)
