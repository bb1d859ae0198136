"""Programs that some tests need and that are not brought along.

In CI a missing one fails the test: nothing is skipped there. Elsewhere the test is skipped with what to
install, which pytest lists at the end, so that a fresh clone can be tried without being root.
"""

import os
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """A tool is not there; *what* names it and how to get it."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(f"{what} (in CI this fails)")
