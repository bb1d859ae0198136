"""One job: its payload, its attempts and how they ended, who runs it, and what can be done about it."""

from datetime import UTC, datetime
from typing import Final

from supervisor.dashboard.orders import FORCE_S
from supervisor.dashboard.problems import Refused
from supervisor.dashboard.view import Page
from supervisor.dashboard.viewer import Viewer
from supervisor.db import browse, gates, operate
from supervisor.story import tell

MOST_SHOWN: Final = 256 * 1024
"""Bytes of storage above which a payload is not shown."""
_MOST_TEXT: Final = 200_000
_BAD: Final = frozenset({"failed", "dead", "crashed", "suspect", "cancelled"})


async def page(viewer: Viewer, job_id: int) -> Page:
    """The job of that id; Refused when there is none."""
    await viewer.somebody_looks()
    row = None if job_id >= 2**63 else await viewer.desk.look(operate.show_job, job_id, most=MOST_SHOWN)
    if row is None:
        raise Refused(
            404,
            f"There is no job {job_id}: it never was, or it is past its time in the history "
            "(SUPERVISOR_KEEP_HISTORY_DAYS) or among the dead (SUPERVISOR_KEEP_DEAD_DAYS).",
        )
    held = await viewer.desk.look(browse.holder, job_id) if row["status"] == "running" else None
    gate = await viewer.desk.look(gates.of_job, job_id)
    story = tell(row, datetime.now(UTC))
    living = row["status"] in ("queued", "running")
    return Page(
        "job.html",
        f"Job {job_id}",
        {
            "job": row,
            "runs_on": None if held is None else held._asdict(),
            "gate": None if gate is None else gate._asdict(),
            "story": story.document(),
        },
        {
            "steps": story.steps,
            "verdict": story.steps[-1].text if row["reason"] and story.steps else None,
            "bad": _BAD,
            "told": any(step.error for step in story.steps),
            "payload_shown": row["payload"] is not None,
            "payload_kept": row["payload_bytes"] is not None,
            "most_text": _MOST_TEXT,
            "can_retry": row["status"] in ("dead", "cancelled"),
            "can_cancel": living and row["cancel_at"] is None,
            "can_force": row["status"] == "running",
            "can_move": row["status"] == "queued",
            "can_release": gate is not None and gate.holds,
            "waits_for": None if gate is None else gate.words,
            "grace_s": round(FORCE_S),
            # Null is a result too; one that is left out is larger than what is shown.
            "result_shown": row["result_bytes"] is not None and row["result_bytes"] <= MOST_SHOWN,
        },
        refresh_s=2.0 if living else 10.0,
    )
