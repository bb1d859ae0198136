"""Which sizes tests have: those of the reported failures with TEST_FULL=1, else ones that take seconds."""

import os
from typing import Final

FULL: Final = os.environ.get("TEST_FULL", "") not in ("", "0")
