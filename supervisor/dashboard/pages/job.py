"""One job: its payload, its attempts and how they ended, who runs it, and what can be done about it."""

from datetime import UTC, datetime
from typing import Any, Final

from supervisor.dashboard.problems import Refused
from supervisor.dashboard.view import Page
from supervisor.dashboard.viewer import Viewer
from supervisor.db import browse, operate

MOST_SHOWN: Final = 256 * 1024
"""Bytes of storage above which a payload is not shown."""
_MOST_TEXT: Final = 200_000
_ENDED_BADLY: Final = {
    "failed": "failed",
    "crashed": "crashed: its process died under it",
    "suspect": "its process died while several ran; it runs alone next",
    "dead": "gave up",
    "unknown": "no handler knew its kind",
    "snoozed": "put itself off",
    "interrupted": "was interrupted",
    "released": "was put back",
}


async def page(viewer: Viewer, job_id: int) -> Page:
    """The job of that id; Refused when there is none."""
    await viewer.somebody_looks()
    row = await viewer.desk.look(operate.show_job, job_id, most=MOST_SHOWN)
    if row is None:
        raise Refused(
            404,
            f"There is no job {job_id}: it never was, or it is past its time in the history "
            "(SUPERVISOR_KEEP_HISTORY_DAYS) or among the dead (SUPERVISOR_KEEP_DEAD_DAYS).",
        )
    held = await viewer.desk.look(browse.holder, job_id) if row["status"] == "running" else None
    errors = [error for error in row["errors"] if isinstance(error, dict)] if isinstance(row["errors"], list) else []
    living = row["status"] in ("queued", "running")
    return Page(
        "job.html",
        f"Job {job_id}",
        {
            "job": row,
            "runs_on": None if held is None else held._asdict(),
            "timeline": sorted(_timeline(row, errors), key=lambda entry: entry["at"]),
        },
        {
            "errors": errors,
            "payload_shown": row["payload"] is not None,
            "payload_kept": row["payload_bytes"] is not None,
            "most_text": _MOST_TEXT,
            "can_retry": row["status"] in ("dead", "cancelled"),
            "can_cancel": living and row["cancel_at"] is None,
            "can_move": row["status"] == "queued",
        },
        refresh_s=2.0 if living else 10.0,
    )


def _timeline(row: dict[str, Any], errors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [{"at": row["created_at"], "what": "created", "text": None, "bad": False}]
    for error in errors:
        if (at := _point(error.get("at"))) is not None:
            event = str(error.get("event"))
            found.append(
                {
                    "at": at,
                    "what": f"attempt {error.get('attempt')} {_ENDED_BADLY.get(event, event)}",
                    "text": str(error.get("error") or ""),
                    "bad": event in ("failed", "crashed", "dead", "suspect"),
                }
            )
    if row["started_at"] is not None:
        found.append(
            {"at": row["started_at"], "what": f"attempt {row['attempts']} started", "text": None, "bad": False}
        )
    if row["cancel_at"] is not None:
        found.append({"at": row["cancel_at"], "what": "cancelled by an operator", "text": None, "bad": True})
    if row["status"] == "queued":
        due = "due" if row["run_at"] <= datetime.now(UTC) else "due then"
        found.append({"at": row["run_at"], "what": due, "text": None, "bad": False})
    if row["finished_at"] is not None:
        why = f": {row['reason']}" if row["reason"] else ""
        found.append(
            {"at": row["finished_at"], "what": row["status"] + why, "text": None, "bad": row["status"] != "done"}
        )
    return found


def _point(value: object) -> datetime | None:
    try:
        at = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)
