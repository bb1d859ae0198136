"""Cron entries: what is in force, the next runs, what became of the last ones.

Always true: the next runs are computed by the code that fires, from the row that it fires by.
"""

from typing import Any, Final

from supervisor.dashboard.view import Page
from supervisor.dashboard.viewer import Viewer
from supervisor.db import schedules
from supervisor.db.schedules import Schedule
from supervisor.schedules import missed_word, next_runs

MOST_SHOWN: Final = 200
RUNS: Final = 3


async def page(viewer: Viewer) -> Page:
    """All entries, retired ones last."""
    data = await viewer.shared("schedules", 1.0, lambda: _gather(viewer))
    return Page("schedules.html", "Schedules", data, refresh_s=5.0)


async def _gather(viewer: Viewer) -> dict[str, Any]:
    found = await viewer.desk.look(schedules.listed)
    return {"schedules": [_described(one) for one in found[:MOST_SHOWN]], "left_out": max(0, len(found) - MOST_SHOWN)}


def _described(one: Schedule) -> dict[str, Any]:
    made = {name: value for name, value in one._asdict().items() if name != "now"}
    runs = next_runs(one, RUNS)
    return {
        **made,
        "state": one.state,
        "overdue_s": one.overdue_s,
        "missed": missed_word(one.missed),
        "defined_missed": missed_word(one.defined_missed),
        "next_runs": runs,
        "next_words": [f"{run:%Y-%m-%d %H:%M:%S %z}" for run in runs],
    }
