"""The queues: how much waits, since when, and how the last hour went.

Always true: counts stop at a limit that shrinks as lanes grow in number, and `at_least` names those that did.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final, TypeAlias

from supervisor.dashboard.pages.workers import fleet
from supervisor.dashboard.view import Page
from supervisor.dashboard.viewer import Viewer
from supervisor.db import browse, gates, overview
from supervisor.db import queues as queue_settings
from supervisor.db.browse import Line
from supervisor.db.desk import Conn
from supervisor.db.overview import QueueDepth
from supervisor.db.queues import QueueSettings
from supervisor.wording import rate

MINUTES: Final = 60
BAD: Final = frozenset({"failed", "dead", "crashed"})
MOST_SHOWN: Final = 200
_REGISTER_EVERY_S: Final = 30.0
_GATES_EVERY_S: Final = 5.0
_MOST_COUNTED: Final = 1_000
_LEAST_COUNTED: Final = 50
_COUNTED_IN_ALL: Final = 40_000

Lines: TypeAlias = dict[str, dict[str, list[int]]]


async def queues(viewer: Viewer) -> Page:
    """All queues in use, the ones that wait longest first."""
    data = await viewer.shared("queues", 1.0, lambda: _gather(viewer))
    return Page("queues.html", "Queues", data, refresh_s=5.0)


async def _gather(viewer: Viewer) -> dict[str, Any]:
    depths, settings, _ = await known(viewer)
    shown = depths[:MOST_SHOWN]
    lines = as_lines(await viewer.desk.look(browse.lines, minutes=MINUTES, queues=[one.queue for one in shown]))
    waiting = await viewer.shared("gates", _GATES_EVERY_S, lambda: viewer.desk.look(gates.waiting))
    return {
        "gates": None if waiting is None else {name: one._asdict() for name, one in waiting.by_gate.items()},
        "gates_limit": gates.MOST_COUNTED,
        "minutes": MINUTES,
        "queues": [described(one, lines, settings.get(one.queue)) for one in shown],
        "left_out": len(depths) - len(shown),
    }


async def known(viewer: Viewer) -> tuple[list[QueueDepth], dict[str, QueueSettings], list[dict[str, Any]]]:
    """Every queue in use or with settings, the ones that wait longest first; the settings by name; the workers.

    What runs is counted from what workers say: it is what they run, not what they hold.
    """
    await viewer.shared("lanes", _REGISTER_EVERY_S, lambda: viewer.desk.order(overview.register_lanes))
    depths = await viewer.desk.look(counted)
    settings = {one.name: one for one in await viewer.desk.look(queue_settings.settings)}
    supervisors = await viewer.desk.look(fleet)
    idle = sorted(settings.keys() - {one.queue for one in depths})
    depths += [QueueDepth(name) for name in idle]
    running = Counter(job["queue"] for one in supervisors for worker in one["workers"] for job in worker["jobs"])
    for depth in depths:
        depth.running = running[depth.queue]
    return depths, settings, supervisors


def counted(conn: Conn, schema: str) -> list[QueueDepth]:
    """Every queue in use, the ones that wait longest first; what runs is not counted."""
    lanes = max(1, browse.lane_count(conn, schema))
    most = max(_LEAST_COUNTED, min(_MOST_COUNTED, _COUNTED_IN_ALL // lanes))
    depths = overview.depths(conn, schema, most=most, running=False)
    return sorted(depths, key=lambda one: (-(one.oldest_due_s or 0.0), one.queue))


def described(depth: QueueDepth, lines: Lines, settings: QueueSettings | None) -> dict[str, Any]:
    """A queue with its last hour and how it is set."""
    return {
        **asdict(depth),
        **hour(lines.get(depth.queue, {})),
        "paused_at": settings.paused_at if settings else None,
        "paused_by": settings.paused_by if settings else None,
        "max_running": settings.max_running if settings else None,
        "places_taken": settings.running if settings else None,
        "counted": settings.counted if settings else True,
        "rate": rate(settings.rate_limit, settings.rate_period_s) if settings else None,
    }


def as_lines(rows: Iterable[Line]) -> Lines:
    """Counts by queue and event, a number per minute."""
    found: Lines = {}
    for row in rows:
        if 0 <= row.minute < MINUTES:
            found.setdefault(row.queue, {}).setdefault(row.event, [0] * MINUTES)[row.minute] += row.jobs
    return found


def hour(events: dict[str, list[int]]) -> dict[str, Any]:
    """The lines of one queue: done, bad (failed, dead, crashed), and their sums."""
    done = events.get("done", [0] * MINUTES)
    bad = [sum(minute) for minute in zip(*(events[name] for name in BAD if name in events), strict=True)]
    bad = bad or [0] * MINUTES
    return {"done_line": done, "bad_line": bad, "done_in_hour": sum(done), "bad_in_hour": sum(bad)}
