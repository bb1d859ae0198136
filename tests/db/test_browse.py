"""Lists of jobs show what jobs wait for, and the times that they were asked for."""

import re
from datetime import UTC, datetime, timedelta

from supervisor.db import browse
from supervisor.db.operate import Filter
from supervisor.db.statements import statement
from tests.support.database import Database


def added(db: Database, options: str = "") -> int:
    found = db.value(f"select id from supervisor.enqueue('t.noop' {options})")
    assert isinstance(found, int)
    return found


def listed(db: Database, *, scheduled: bool | None = None, after: int | None = None) -> dict[int, browse.JobRow]:
    wanted = Filter(("queued",), None, None, scheduled)
    with db.connect() as conn:
        found = browse.page(conn, "supervisor", browse.Search(wanted), after=after, limit=50)
    return {row.id: row for row in found.rows}


def test_a_job_at_a_gate_is_listed_with_its_gate_and_its_own_time_in_both_directions(db: Database) -> None:
    plain = added(db)
    waiting = {
        "order": added(db, ", ordering_key => 'k'"),
        "concurrency": added(db, ", concurrency_key => 'k', concurrency_limit => 1"),
        "rate": added(db, ", rate_key => 'k', rate_limit => 1, rate_period => '1 minute'"),
        "parents": added(db, f", after => array[{plain}]"),
    }
    later = added(db, ", ordering_key => 'l', delay => '1 hour'")
    for rows in (listed(db), listed(db, after=0)):
        assert rows[plain].waits_for is None
        for gate, job_id in waiting.items():
            assert rows[job_id].waits_for == gate
            assert rows[job_id].run_at < datetime.now(UTC) + timedelta(minutes=1)
        assert rows[later].run_at < datetime.now(UTC) + timedelta(hours=2)
    assert listed(db, scheduled=True).keys() == {later}


def test_the_page_before_is_asked_for_as_the_page_after_is() -> None:
    """Two statements, since one for both directions would have no plan that stops early; one cannot change alone."""
    down, up = (statement(name, "supervisor").decode() for name in ("list_jobs", "list_jobs_up"))
    for here, there in (
        (r"(\w)\.id <= coalesce\(%\(before\)s::bigint - 1, 9223372036854775807\)", r"\1.id > %(after)s::bigint"),
        (r"order by (\w+)\.id desc", r"order by \1.id"),
        (r"min\(id\)", "max(id)"),
        (r"select greatest\(", "select least("),
        (r"all_of\.id >= coalesce\(edge\.id, 0\)", "all_of.id <= coalesce(edge.id, 9223372036854775807)"),
    ):
        down, count = re.subn(here, there, down)
        assert count, here
    assert down.split() == up.split()
