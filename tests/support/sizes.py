"""Which sizes tests have: those of the reported failures with TEST_FULL=1, else ones that take seconds."""

import os
from typing import Final

FULL: Final = os.environ.get("TEST_FULL", "") not in ("", "0")


def within(stated_s: float, *, busy_s: float) -> float:
    """How long something may take: as stated at full size, which is run on a quiet machine; else *busy_s*.

    Short forms run beside other tests on few processors. Their limit is still below what the fault they look for
    would take (a poll, a time limit, a hang); how fast we are is measured, not asserted, there.
    """
    return stated_s if FULL else busy_s
