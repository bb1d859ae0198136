"""What the command line and the dashboard share about cron entries: checks of orders, next runs, words.

Always true: an order that passes `check_order` is refused by the database for its name only; the next runs
shown are those that supervisors will fire, since both come from the same row by the same code.

Elsewhere: ticks (cron.py); the orders themselves (db/schedules.py, functions/085_cron.sql).
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from supervisor.cron import Timetable, check_missed, check_zone
from supervisor.db.schedules import Schedule
from supervisor.errors import InvalidJob, InvalidSchedule
from supervisor.payload import check_text

MAX_BY_BYTES: Final = 200
MAX_NAME_BYTES: Final = 300


def check_order(
    name: str, *, by: str | None = None, cron: str | None = None, tz: str | None = None, missed: int | None = None
) -> None:
    """Raise InvalidSchedule, with the field named, for what no entry can be called or set to."""
    try:
        check_text("name", name, max_bytes=MAX_NAME_BYTES)
        if by is not None:
            check_text("by", by, max_bytes=MAX_BY_BYTES)
    except InvalidJob as error:
        raise InvalidSchedule(error.field, error.reason) from None
    if tz is not None:
        check_zone(tz)
    if cron is not None:
        Timetable(cron)
    if missed:
        check_missed(missed)


def read_missed(text: str) -> int:
    """How many missed ticks are fired at most, from a word or a number as text; raises as `check_missed`."""
    return check_missed(int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else text)


def missed_word(missed: int) -> str:
    """How `missed` is written: skip, once, or the number."""
    return {0: "skip", 1: "once"}.get(missed, str(missed))


def next_runs(entry: Schedule, count: int) -> list[datetime]:
    """The next *count* ticks of *entry*, in its own time zone; for a paused one, as if it were resumed now.

    Empty for an entry that is retired or cannot be computed here.
    """
    if entry.retired_at is not None:
        return []
    try:
        zone, table = check_zone(entry.tz), Timetable(entry.cron, entry.tz)
    except InvalidSchedule:
        return []
    planned = entry.next_at if entry.state == "open" else None
    begin = entry.now if planned is None else planned.astimezone(UTC) - timedelta(seconds=1)
    return [tick.astimezone(zone) for tick in table.upcoming(begin, count)]
