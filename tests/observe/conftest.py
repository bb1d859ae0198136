"""Each service has a run directory of its own, whose files can be looked at, and shows its figures often."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.service import Service

_numbers = itertools.count(1)


@pytest.fixture
def service(service: Callable[..., Service], tmp_path: Path) -> Callable[..., Service]:
    """As the general one: `service(processes=2, concurrency=5)`."""

    def start(**options: Any) -> Service:
        options.setdefault("run_dir", tmp_path / f"run-{next(_numbers)}")
        options.setdefault("health_port", "auto")
        options.setdefault("watch_every_s", 0.5)
        return service(**options)

    return start


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Show a measured figure in the test's output, whatever pytest captures."""

    def show(text: str) -> None:
        with capsys.disabled():
            print(f"\n    {text}", flush=True)

    return show
