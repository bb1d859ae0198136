"""Check of cron entries: whether each can be computed here, and whether somebody fires it."""

from collections.abc import Iterable

from supervisor.cron import Timetable
from supervisor.doctor.look import Look
from supervisor.doctor.report import Verdict, note, ok, problem, warning
from supervisor.errors import InvalidSchedule
from supervisor.wording import count, length

_MOST_NAMES = 5


async def schedules(look: Look) -> Iterable[Verdict]:
    """Entries that are due and not fired, that cannot be computed, that no running supervisor defines."""
    entries = await look.db.schedules()
    live = [one for one in entries if one.retired_at is None]
    found = []
    late = [one for one in live if one.overdue_s > look.limits.waited_s and one.state == "open"]
    if late:
        longest = max(one.overdue_s for one in late)
        found.append(
            problem(
                f"{_named(one.name for one in late)} should have been fired, the latest {length(longest)} ago",
                "start a supervisor: `supervisor run`; if one runs, its log says why it does not reach the database",
            )
        )
    for one in live:
        if one.problem is not None:
            found.append(
                problem(
                    f"{one.name} is never due: {one.problem}",
                    f"see `supervisor schedules list`; set it right with `supervisor schedules set {one.name}`, or go "
                    f"back to what its handler says with `supervisor schedules unset {one.name}`",
                )
            )
            continue
        try:
            Timetable(one.cron, one.tz)
        except InvalidSchedule as error:
            found.append(
                warning(
                    f"{one.name} cannot be computed on this machine: {error.field}: {error.reason}",
                    "install time zone data here: `pip install --upgrade tzdata`",
                )
            )
    retired = [one.name for one in entries if one.retired_at is not None]
    if retired:
        found.append(
            note(
                f"{_named(retired)} is retired: no running supervisor has its handler",
                "nothing to do if the handler was removed; else start a supervisor that has it",
            )
        )
    if not found:
        found.append(ok(f"{count(len(live))} cron entries, none overdue"))
    return found


def _named(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    listed = list(names)
    more = f" and {count(len(listed) - _MOST_NAMES)} more" if len(listed) > _MOST_NAMES else ""
    return ", ".join(listed[:_MOST_NAMES]) + more
