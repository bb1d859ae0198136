"""The overview: what is wrong, the queues, and what every worker runs right now."""

from datetime import UTC, datetime
from typing import Any, Final

from supervisor.dashboard.pages.queues import MINUTES, as_lines, described, hour, known
from supervisor.dashboard.view import Page
from supervisor.dashboard.viewer import Viewer
from supervisor.db import browse, overview
from supervisor.wording import count, length

_SHOWN: Final = 50
_DEAD_SHOWN: Final = 5
_LATE_S: Final = 60.0


async def page(viewer: Viewer) -> Page:
    """The first page."""
    await viewer.somebody_looks()
    data = await viewer.shared("overview", 0.9, lambda: _gather(viewer))
    return Page("overview.html", "Overview", data, refresh_s=2.0)


async def _gather(viewer: Viewer) -> dict[str, Any]:
    desk = viewer.desk
    depths, settings, supervisors = await known(viewer)
    shown = depths[:_SHOWN]
    lines = as_lines(await desk.look(browse.lines, minutes=MINUTES, queues=[one.queue for one in shown]))
    whole = as_lines(await desk.look(browse.lines, minutes=MINUTES))
    dead = await desk.look(overview.recent_dead, limit=_DEAD_SHOWN)
    data = {
        "asked_at": datetime.now(UTC),
        "minutes": MINUTES,
        "totals": {
            "due": sum(one.due for one in depths),
            "due_at_least": any("due" in one.at_least for one in depths),
            "scheduled": sum(one.scheduled for one in depths),
            "scheduled_at_least": any("scheduled" in one.at_least for one in depths),
            "running": sum(worker["running"] for one in supervisors for worker in one["workers"]),
            "dead": sum(one.dead for one in depths),
            "dead_at_least": any("dead" in one.at_least for one in depths),
            "oldest_due_s": max((one.oldest_due_s for one in depths if one.oldest_due_s is not None), default=None),
            **hour(whole.get("", {})),
        },
        "queues": [described(one, lines, settings.get(one.queue)) for one in shown],
        "left_out": len(depths) - len(shown),
        "supervisors": supervisors,
        "recent_dead": dead,
    }
    return {"remarks": list(_remarks(data)), **data}


def _remarks(data: dict[str, Any]) -> Any:
    """What an operator is to see first, in words; nothing when all is well."""
    living = [one for one in data["supervisors"] if one["alive"]]
    totals = data["totals"]
    if not living:
        waits = f", and {count(totals['due'], totals['due_at_least'])} jobs wait" if totals["due"] else ""
        yield {"level": "bad", "text": f"No supervisor runs{waits}: start one with supervisor run.", "path": ""}
    for one in data["supervisors"]:
        if not one["alive"] and not one["gone"]:
            text = f"Supervisor {one['name']} on {one['host']} (pid {one['pid']}) was not heard of in time."
            yield {"level": "bad", "text": text, "path": ""}
    for one in living:
        if not one["listening"]:
            text = f"Supervisor {one['name']} finds jobs by polling: notifications do not reach it."
            yield {"level": "warn", "text": text, "path": "/health"}
    for one in [one for one in data["queues"] if one["paused_at"] and one["due"]][:3]:
        waits = count(one["due"], "due" in one["at_least"])
        yield {"level": "warn", "text": f"Queue {one['queue']} is paused, and {waits} jobs wait.", "path": "/queues"}
    late = [one for one in data["queues"] if (one["oldest_due_s"] or 0) >= _LATE_S and not one["paused_at"]]
    for one in late[:3]:
        text = f"In queue {one['queue']} a job has waited for {length(one['oldest_due_s'])}."
        yield {"level": "warn", "text": text, "path": "/queues"}
    if len(late) > 3:
        yield {"level": "warn", "text": f"So it is in {len(late) - 3} more queues.", "path": "/queues"}
    if totals["bad_in_hour"]:
        text = (
            f"{count(totals['bad_in_hour'])} runs failed or crashed, and {count(totals['done_in_hour'])} were done, "
            f"in the last {MINUTES} minutes."
        )
        level = "bad" if totals["bad_in_hour"] > totals["done_in_hour"] else "warn"
        yield {"level": level, "text": text, "path": "/jobs?status=dead"}
