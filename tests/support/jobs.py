"""Enqueue jobs by the SQL function, as any language would, and ask what became of them."""

import json
from typing import Any

from tests.support.database import Database


def enqueue(
    db: Database, kind: str, payload: dict[str, Any] | None = None, count: int = 1, **options: Any
) -> list[int]:
    """Add *count* equal jobs in one statement; their ids."""
    job = {"kind": kind, "payload": payload or {}, **options}
    return enqueue_all(db, [job] * count)


def enqueue_all(db: Database, jobs: list[dict[str, Any]]) -> list[int]:
    """Add *jobs*, objects with the names of the function's parameters, in one statement; their ids in order."""
    rows = db.rows(f"select id from {db.schema}.enqueue_many(%s::jsonb) order by ord", [json.dumps(jobs)])
    return [row[0] for row in rows]


def wait_done(db: Database, count: int, deadline_s: float = 30.0) -> None:
    """Wait until *count* jobs are done."""
    db.wait_for(f"select count(*)::int from {db.schema}.history", count, deadline_s)


def job(db: Database, job_id: int) -> dict[str, Any]:
    """The public view's row of one job."""
    return dict(db.value(f"select to_jsonb(j) from {db.schema}.jobs j where id = %s", [job_id]))
