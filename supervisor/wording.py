"""Numbers, lengths of time and texts as people read them; one wording for the command line and the dashboard.

Elsewhere: tables and colours of the command line (cli/output.py), pages (dashboard/).
"""

import itertools
from datetime import UTC, datetime

PERIODS = {1.0: "s", 60.0: "min", 3600.0: "h", 86400.0: "d"}
_SIZES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def clean(text: object) -> str:
    """*text* on one line without control characters."""
    return "".join(char if char.isprintable() else " " if char in "\r\n\t" else "\ufffd" for char in str(text))


def count(number: int, capped: bool = False) -> str:
    """1234567 as 1,234,567; a count that stopped at its limit as 10,000+."""
    return f"{number:,}+" if capped else f"{number:,}"


def length(seconds: float | None) -> str:
    """A length of time in its two largest units."""
    if seconds is None:
        return "-"
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    for (size, name), (smaller, smaller_name) in itertools.pairwise(units):
        if seconds >= size:
            whole, rest = divmod(round(seconds), size)
            return f"{whole} {name} {rest // smaller} {smaller_name}" if rest // smaller else f"{whole} {name}"
    return f"{seconds:.0f} s"


def ago(at: datetime | None) -> str:
    """How long ago, or how soon."""
    if at is None:
        return "-"
    seconds = (datetime.now(UTC) - at).total_seconds()
    return f"{length(seconds)} ago" if seconds >= 0 else f"in {length(-seconds)}"


def rate(limit: int | None, period_s: float | None) -> str | None:
    """A rate as 10/s, 100/min, 1000/h, 5/d, or 20/90s."""
    if limit is None or period_s is None:
        return None
    return f"{limit}/{PERIODS.get(period_s) or f'{period_s:g}s'}"


def size(number: int | None) -> str:
    """Bytes in the largest unit of which there is at least one."""
    if number is None:
        return "-"
    for unit, name in _SIZES:
        if number >= unit:
            return f"{number / unit:.1f} {name}" if number < 100 * unit else f"{number / unit:.0f} {name}"
    return f"{number} B"


def first_line(text: str | None, most: int = 200) -> str | None:
    """The first line of an error's text."""
    if not text:
        return None
    line = clean(text.strip().splitlines()[0] if text.strip() else "")
    return line if len(line) <= most else line[: most - 1] + "…"
