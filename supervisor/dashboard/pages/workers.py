"""Supervisors and their workers, with what each runs, as they last said.

Always true: what workers say is shown, not believed: a job's kind and queue come from its own row where it has one,
and whatever is malformed is left out.
"""

from datetime import UTC, datetime
from typing import Any, Final

from supervisor.db import browse, overview
from supervisor.db.browse import Named, WorkerRow
from supervisor.db.desk import Conn

_JOBS_SHOWN: Final = 20
_JOBS_IN_ALL: Final = 2_000
_GONE_S: Final = 300.0
_FRESH_S: Final = 3.0


def fleet(conn: Conn, schema: str) -> list[dict[str, Any]]:
    """Every supervisor with its workers, living ones first; workers without a supervisor come last, under none."""
    rows = browse.workers(conn, schema)
    told = [(row, _told(row.doing)) for row in rows]
    ids = [job["id"] for _, doing in told for job in doing["jobs"]][:_JOBS_IN_ALL]
    names = browse.named(conn, schema, ids)
    workers: dict[int | None, list[dict[str, Any]]] = {}
    for row, doing in told:
        workers.setdefault(row.parent, []).append(_worker(row, doing, names))
    found = [
        {
            "id": str(one.id),
            "name": one.name,
            "host": one.host,
            "pid": one.pid,
            "version": one.version,
            "state": one.state if one.alive else "lost",
            "alive": one.alive,
            "gone": not one.alive and one.expires_in_s < -_GONE_S,
            "started_at": one.started_at,
            "listening": _listens(one.detail),
            "workers": workers.pop(one.id, []),
        }
        for one in overview.parents(conn, schema)
    ]
    if orphans := [worker for left in workers.values() for worker in left]:
        found.append(
            {
                "id": "",
                "name": "no supervisor",
                "host": "",
                "pid": None,
                "version": "",
                "state": "orphaned",
                "alive": False,
                "gone": True,
                "started_at": None,
                "listening": False,
                "workers": orphans,
            }
        )
    return found


def _worker(row: WorkerRow, doing: dict[str, Any], names: dict[int, Named]) -> dict[str, Any]:
    jobs = []
    for job in doing["jobs"][:_JOBS_SHOWN]:
        known = names.get(job["id"])
        jobs.append(
            {
                "id": job["id"],
                "kind": known.kind if known else job["kind"],
                "queue": known.queue if known else None,
                "attempt": known.attempts if known else None,
                "started_at": job["started_at"],
                "returned": job["returned"] or known is None,
            }
        )
    return {
        "name": row.name,
        "slot": doing["slot"],
        "pid": doing["pid"],
        "state": doing["state"],
        "running": max(doing["running"], len(doing["jobs"])),
        "claimed": doing["claimed"],
        "opened_at": row.opened_at,
        "lease_left_s": row.lease_left_s,
        "seen_ago_s": row.seen_ago_s,
        "fresh": row.seen_ago_s is not None and row.seen_ago_s < _FRESH_S,
        "jobs": jobs,
        "more": max(0, doing["running"] - len(jobs)),
    }


def _told(doing: Any) -> dict[str, Any]:
    """What a worker says, with everything that is not as it should be left out."""
    doing = doing if isinstance(doing, dict) else {}
    said = doing.get("jobs")
    jobs = [
        {
            "id": job["id"],
            "kind": str(job.get("kind", "?")),
            "started_at": _point(job.get("started")),
            "returned": job.get("phase") == "returned",
        }
        for job in (said if isinstance(said, list) else ())
        if isinstance(job, dict) and _number(job.get("id"))
    ]
    return {
        "slot": doing.get("slot") if _number(doing.get("slot")) else None,
        "pid": doing.get("pid") if _number(doing.get("pid")) else None,
        "state": str(doing.get("state", "not told yet")),
        "running": doing["running"] if _number(doing.get("running")) else len(jobs),
        "claimed": doing["claimed"] if _number(doing.get("claimed")) else 0,
        "jobs": jobs,
    }


def _listens(detail: Any) -> bool:
    return isinstance(detail, dict) and bool(detail.get("listening"))


def _number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _point(value: object) -> datetime | None:
    if isinstance(value, int | float) and 0 <= value < 253_000_000_000:
        return datetime.fromtimestamp(value, UTC)
    return None
