"""Lists of jobs: filters, search, and pages in both directions; the answer says how far it looked.

Parameters of the address: status (queued, scheduled, running, done, dead, cancelled; repeatable), queue, kind, q
(text or JSON in the payload), before or after (a job's id).
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

from starlette.datastructures import QueryParams

from supervisor.dashboard.problems import Refused
from supervisor.dashboard.view import Page
from supervisor.dashboard.viewer import PATIENCE_S, Viewer
from supervisor.db import browse
from supervisor.db.browse import JobRow, Search
from supervisor.db.operate import Filter

STATUSES: Final = ("queued", "running", "done", "dead", "cancelled")
CHOICES: Final = ("queued", "scheduled", "running", "done", "dead", "cancelled")
SIZE: Final = 50
MOST_RUNNING: Final = 200
_LONGEST: Final = 1_000
_BIGGEST_ID: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Asked:
    """What the address asks for."""

    status: str
    queue: str | None
    kind: str | None
    q: str | None
    before: int | None
    after: int | None

    @classmethod
    def read(cls, params: QueryParams) -> "Asked":
        """Raises Refused for what cannot be asked."""
        status = params.get("status", "").strip().lower()
        if status and status not in CHOICES:
            raise Refused(400, f"status must be one of {', '.join(CHOICES)}")
        return cls(
            status,
            _text(params, "queue"),
            _text(params, "kind"),
            _text(params, "q"),
            _job_id(params, "before"),
            _job_id(params, "after"),
        )

    def search(self) -> Search:
        """The same for the database."""
        holds, says = browse.as_contained(self.q) if self.q else (None, None)
        statuses = ("queued",) if self.status == "scheduled" else (self.status,) if self.status else STATUSES
        scheduled = True if self.status == "scheduled" else None
        return Search(Filter(statuses, self.queue, self.kind, scheduled), holds, says)


async def page(viewer: Viewer, params: QueryParams) -> Page:
    """The jobs that fit."""
    asked = Asked.read(params)
    search = asked.search()
    if asked.status == "running":
        return await _running(viewer, asked, search)
    async with viewer.searching() if search.narrow else nullcontext(PATIENCE_S) as patience_s:
        found = await viewer.desk.look(
            browse.page, search, before=asked.before, after=asked.after, limit=SIZE, patience_s=patience_s
        )
    first = asked.before is None and asked.after is None
    return _page(
        asked,
        found.rows,
        {"older": found.older, "newer": found.newer, "looked": found.looked, "stopped": found.stopped},
        refresh_s=5.0 if first and not search.narrow else None,
    )


async def _running(viewer: Viewer, asked: Asked, search: Search) -> Page:
    found = await viewer.desk.look(browse.running, search, limit=MOST_RUNNING + 1)
    more = len(found.rows) > MOST_RUNNING
    ends = {"older": None, "newer": None, "looked": found.looked, "stopped": more}
    return _page(asked, found.rows[:MOST_RUNNING], ends, refresh_s=2.0)


def _page(asked: Asked, rows: list[JobRow], ends: dict[str, Any], *, refresh_s: float | None) -> Page:
    filters = {"status": asked.status, "queue": asked.queue, "kind": asked.kind, "q": asked.q}
    search = asked.search()
    return Page(
        "jobs.html",
        "Jobs",
        {"jobs": rows, "filter": filters, **ends},
        {
            "choices": CHOICES,
            "by": "contained" if search.holds else "text" if search.says else None,
            "most_running": MOST_RUNNING,
        },
        refresh_s=refresh_s,
    )


def _text(params: QueryParams, name: str) -> str | None:
    value = params.get(name, "").strip()
    if "\0" in value:
        raise Refused(400, f"{name} holds a NUL character, which no job can hold")
    if len(value) > _LONGEST:
        raise Refused(400, f"{name} is {len(value)} characters long, at most {_LONGEST} can be asked for")
    return value or None


def _job_id(params: QueryParams, name: str) -> int | None:
    value = params.get(name, "").strip()
    if not value:
        return None
    if not (value.isascii() and value.isdigit()) or int(value[:20]) > _BIGGEST_ID:
        raise Refused(400, f"{name} must be a job's id")
    return int(value)
