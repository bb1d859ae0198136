"""What the tests of the process tree share."""

from collections.abc import Callable

import pytest


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Show a measured figure in the test's output, whatever pytest captures."""

    def show(text: str) -> None:
        with capsys.disabled():
            print(f"\n    {text}", flush=True)

    return show
