"""A dashboard on the test's database, and a browser. Both are real."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.browser import Browser, started
from tests.support.dashboard import Dashboard
from tests.support.database import Database


@pytest.fixture
def dashboard(db: Database) -> Iterator[Callable[..., Dashboard]]:
    """Start dashboards on `db`: `dashboard(dashboard_read_only=True)`; all are gone when the test ends."""
    begun: list[Dashboard] = []

    def start(*arguments: str, **settings: Any) -> Dashboard:
        begun.append(Dashboard(db, *arguments, **settings))
        return begun[-1].start()

    yield start
    for one in begun:
        if one.address:
            one.close()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with started() as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    """The browser as if freshly started."""
    chromium.fresh()
    return chromium


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Show a measured figure in the test's output, whatever pytest captures."""

    def show(text: str) -> None:
        with capsys.disabled():
            print(f"\n    {text}", flush=True)

    return show
