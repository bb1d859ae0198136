"""What the tests of the process tree share."""

import os
from collections.abc import Callable

import pytest

FULL = os.environ.get("CHAOS_FULL") == "1"
"""Run at the sizes of the reported failures; minutes instead of seconds."""


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Show a measured figure in the test's output, whatever pytest captures."""

    def show(text: str) -> None:
        with capsys.disabled():
            print(f"\n    {text}", flush=True)

    return show
