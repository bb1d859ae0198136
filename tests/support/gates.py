"""Jobs at gates, for tests that talk to the database alone: adding them, letting them in, looking at them."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from supervisor.db.statements import statement
from tests.support.database import Database
from tests.support.queue import Conn

MINUTE = timedelta(minutes=1)


class Looked(NamedTuple):
    """One answer of pass_gates()."""

    looked: int
    let_in: int
    next_s: float | None
    read_ms: float | None


def gated(
    conn: Conn,
    *,
    kind: str = "k",
    payload: dict[str, Any] | None = None,
    queue: str = "default",
    delay_s: float = 0.0,
    max_attempts: int = 20,
    order: str | None = None,
    hold: bool = False,
    concurrency: tuple[str, int] | None = None,
    rate: tuple[str, int, timedelta] | None = None,
    after: Sequence[int] = (),
    failed: str | None = None,
) -> int:
    """Add one job with gates, as an enqueue does, in one statement; its id."""
    row = conn.execute(
        "with clock as materialized (select clock_timestamp() + make_interval(secs => %(delay)s) as due_at),"
        " added as (insert into supervisor.job (kind, payload, queue, run_at, gated, max_attempts)"
        " values (%(kind)s, %(payload)s, %(queue)s, supervisor.parked_at(), true, %(max_attempts)s) returning id)"
        " select added.id, supervisor.add_gated(added.id, clock.due_at, %(order)s, %(hold)s, %(ckey)s, %(climit)s,"
        " %(rkey)s, %(rlimit)s, %(rperiod)s, %(after)s, %(failed)s) from added, clock",
        {
            "kind": kind, "payload": json.dumps(payload or {}), "queue": queue, "delay": delay_s,
            "max_attempts": max_attempts, "order": order, "hold": hold,
            "ckey": concurrency[0] if concurrency else None, "climit": concurrency[1] if concurrency else None,
            "rkey": rate[0] if rate else None, "rlimit": rate[1] if rate else None,
            "rperiod": rate[2] if rate else None, "after": list(after), "failed": failed,
        },
    ).fetchone()  # fmt: skip
    assert row is not None
    return int(row[0])


def look(conn: Conn, most: int = 200, since: float = 0.0) -> Looked:
    """Let supervisors' gatekeeper look once."""
    row = conn.execute(statement("pass_gates", "supervisor"), {"since": since, "most": most}).fetchone()
    assert row is not None
    return Looked(*row)


def let_in(db: Database) -> list[int]:
    """Jobs with gates that have been let in and have not ended, by id."""
    return [row[0] for row in db.rows("select job_id from supervisor.gated where gate is null order by job_id")]


def at_gate(db: Database, job_id: int) -> str | None:
    """What a job waits for: parents, order, concurrency, rate; None when it was let in."""
    found: str | None = db.value("select waits_for from supervisor.jobs where id = %s", [job_id])
    return found


def bring_notes(db: Database) -> None:
    """As if the time of every note had come."""
    db.execute("update supervisor.gate_note set at = clock_timestamp()")
