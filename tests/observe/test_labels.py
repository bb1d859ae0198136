"""B43: whatever jobs bring, the page does not grow with it."""

import re
from collections.abc import Callable

import pytest

from supervisor.client import enqueue_many
from supervisor.newjob import NewJob
from tests.support import proc
from tests.support.database import Database
from tests.support.observe_handlers import MODULES
from tests.support.service import Service
from tests.support.sizes import FULL
from tests.support.waiting import wait_until

Start = Callable[..., Service]
JOBS = 20_000 if FULL else 1_000
NAMES = 2_000 if FULL else 150
RESTARTS = 50 if FULL else 4
MOST_NEW_SERIES = 100
MOST_BYTES = 2**20


def series(page: str) -> set[str]:
    return {line.rpartition(" ")[0] for line in page.splitlines() if line and not line.startswith("#")}


@pytest.mark.timeout(1800 if FULL else 180)
def test_names_keys_errors_and_restarts_make_no_series(
    db: Database, service: Start, report: Callable[[str], None]
) -> None:
    one = service(handlers=MODULES, processes=2, concurrency=10, retry_base_s=0.01, restart_budget=1000)
    conn = db.connect()

    def restarts() -> float:
        return one.metric("supervisor_restarts_total")

    # A little of everything first: what is new is new to the page, not to the names.
    proc.kill(one.worker_pids()[0])
    wait_until(lambda: restarts() == 1, 10, "a worker was replaced")
    one.wait_workers(2)
    enqueue_many(conn, [NewJob("t.noop"), NewJob("o.unlike", {"text": "x"}), NewJob("t.fail", {"times": 1})])
    for kind in ("t.noop", "o.unlike", "t.fail"):
        for what in ("job_run_seconds", "job_wait_seconds"):
            wait_until(
                lambda name=f"supervisor_{what}_count", kind=kind: one.metric(name, kind=kind) > 0,  # type: ignore[misc]
                10,
                f"{what} of {kind} is shown",
            )
    wait_until(lambda: one.metric("supervisor_queue_jobs", status="dead") >= 1, 20, "depths are shown")
    wait_until(lambda: one.metric("supervisor_table_bytes") > 0, 20, "tables are shown")
    before = one.get("/metrics")[1]

    for start in range(0, JOBS, 1000):
        enqueue_many(
            conn,
            [
                NewJob("o.unlike", {"text": f"error {n}"}, unique_key=f"key {n}", headers={"tag": f"tag {n}"})
                for n in range(start, min(start + 1000, JOBS))
            ],
        )
    # As anybody may: straight into the table.
    conn.execute(
        "insert into supervisor.job (kind, queue) select 'stranger.' || n, 'queue ' || n from generate_series(1, %s) n",
        [NAMES],
    )
    conn.execute("insert into supervisor.job (kind, queue) select 't.noop', 'own ' || n from generate_series(1, %s) n",
                 [NAMES])  # fmt: skip
    for number in range(1, RESTARTS + 1):
        wait_until(one.worker_pids, 10)
        proc.kill(one.worker_pids()[0])
        wait_until(lambda wanted=1 + number: restarts() >= wanted, 20, f"restart {number}")  # type: ignore[misc]
    db.wait_for("select count(*) from supervisor.job where kind in ('t.noop', 'o.unlike')", 0, 900 if FULL else 90)
    wait_until(lambda: one.metric("supervisor_unknown_kinds_total") >= NAMES, 120, "strangers were met")
    wait_until(lambda: one.metric("supervisor_queue_lanes") >= 2 * NAMES, 60, "their queues are known")
    after = one.get("/metrics")[1]
    grown = series(after) - series(before)
    report(
        f"{JOBS} errors and keys, {2 * NAMES} queues, {NAMES} kinds, {restarts():g} restarts:"
        f" {len(series(before))} series and {len(grown)} more, {len(after) // 1024} KB"
    )
    assert len(grown) < MOST_NEW_SERIES, sorted(grown)
    assert len(after) < MOST_BYTES
    assert not re.search(r"stranger|error \d|key \d|tag \d|queue \d|own \d", after)
    assert one.metric("supervisor_jobs_total", queue="other", kind="t.noop", outcome="done") == NAMES
    assert one.metric("supervisor_jobs_total", kind="o.unlike", outcome="dead") == JOBS + 1
    assert db.value("select count(*) from supervisor.dead_letter where reason = 'cancel'") == JOBS + 1
