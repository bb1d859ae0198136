"""Lists of jobs show what jobs wait for, and the times that they were asked for."""

from datetime import UTC, datetime, timedelta

from supervisor.db import browse
from supervisor.db.operate import Filter
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
