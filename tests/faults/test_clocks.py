"""The host's wall clock is wrong, or jumps: only the database's clock counts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.client import enqueue
from tests.support.database import Database
from tests.support.fault_handlers import MODULES
from tests.support.service import ROOT, Service
from tests.support.sizes import FULL, within
from tests.support.waiting import wait_until

Start = Callable[..., Service]

# Found by every Python of the service (parent, fork server, workers) before anything else.
_SHIFT = """
import os, time
real, began = time.time, time.monotonic()
def shifted():
    jump = float(os.environ["CLOCK_JUMP_S"]) if time.monotonic() - began > 4 else 0.0
    return real() + float(os.environ["CLOCK_SHIFT_S"]) + jump
time.time = shifted
time.time_ns = lambda: int(shifted() * 1e9)
"""


@pytest.mark.parametrize(("shift_s", "jump_s"), [(-90, 0), (0, 3600), *([(90, 0)] if FULL else [])])
def test_a_wrong_host_clock_changes_nothing(
    db: Database, service: Start, tmp_path: Path, shift_s: int, jump_s: int
) -> None:
    """B33 in small: delays and retries as the server measures them, leases kept, no second run, no negative age."""
    (tmp_path / "sitecustomize.py").write_text(_SHIFT)
    one = service(
        handlers=MODULES, processes=1, concurrency=10, lease_s=3, retry_base_s=1, poll_every_s=60,
        env={
            "PYTHONPATH": f"{tmp_path}:{ROOT}", "CLOCK_SHIFT_S": str(shift_s), "CLOCK_JUMP_S": str(jump_s),
        },
    )  # fmt: skip
    conn = db.connect()
    long = enqueue(conn, "t.sleep", {"seconds": 7}).id
    delayed = enqueue(conn, "t.effect", in_=3.0).id
    limited = enqueue(conn, "t.effect", in_=3.0, ordering_key="o", concurrency_key="c", concurrency_limit=1).id
    failing = enqueue(conn, "t.retry", {"after": 5.0}).id
    db.wait_for("select count(*) from supervisor.history", 4, 25)
    at: dict[int, float] = dict(db.rows("select job_id, max(extract(epoch from at))::float8 from effects group by 1"))
    due = "select extract(epoch from created_at)::float8 + 3 from supervisor.jobs where id = %s"
    first = db.value(
        "select min(extract(epoch from at))::float8 from effects where job_id = %s and note = 'retry'", [failing]
    )
    late, retried = [at[job] - db.value(due, [job]) for job in (delayed, limited)], at[failing] - first
    print(f">>> delayed jobs {late[0] * 1000:.0f} and {late[1] * 1000:.0f} ms late; retried after {retried:.2f} s")
    assert all(0 <= by < within(1, busy_s=10) for by in late)
    assert 5 <= retried < 5 + within(1, busy_s=10)
    assert db.effects("start") == {long: 1}
    assert db.rows("select id from supervisor.history where crashes > 0 or attempts > 2") == []
    assert one.metric("supervisor_leases_lost_total") == 0
    assert one.metric("supervisor_job_wait_seconds_sum") >= 0
    wait_until(lambda: one.metric("supervisor_job_wait_seconds_count") >= 5, 5, "waits are measured")
    assert one.metric("supervisor_job_wait_seconds_sum") < within(3, busy_s=40)
    assert one.stop() == 0
