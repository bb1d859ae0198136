"""A wrong wall clock for whole process trees: Debian's libfaketime, preloaded.

The monotonic clock stays true, as on a machine whose wall clock is set wrong or slewed.
"""

from pathlib import Path
from typing import Final

_NAME: Final = "faketime/libfaketime.so.1"
FAKETIME: Final = next(Path("/usr/lib").glob(f"*/{_NAME}"), Path("/usr/lib") / _NAME)


def environment(clock: Path) -> dict[str, str]:
    """What makes a process and its children take the wall clock's error from the file *clock*, e.g. `-90s`, `+0 x1.2`.

    A change of the file is seen within a second: the clock jumps.
    """
    return {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DISABLE_SHM": "1",
    }
