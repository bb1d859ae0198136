"""A site whose default isolation level is not the one the product needs."""

import json
from collections.abc import Callable

import pytest

from supervisor.client import enqueue_many
from supervisor.newjob import NewJob
from tests.support.database import Database
from tests.support.fault_handlers import MODULES
from tests.support.service import Service
from tests.support.sizes import FULL

Start = Callable[..., Service]


WORKERS, JOBS = (8, 5000) if FULL else (4, 2000)
EACH_SECOND = {"CRON_ENTRIES": json.dumps({"tick": [{"cron": "* * * * * *", "missed": 1000}]})}


@pytest.mark.timeout(300 if FULL else 150)
def test_a_role_that_defaults_to_serializable_changes_nothing(db: Database, service: Start) -> None:
    """B19: jobs of all endings on several workers: each runs once, nobody crashes, none waits for a lease to pass,
    and an entry of each second fires each tick once."""
    db.execute("alter role current_user in database " + db.name + " set default_transaction_isolation = 'serializable'")
    assert db.connect().execute("show default_transaction_isolation").fetchone() == ("serializable",)
    one = service(
        handlers=f"{MODULES},tests.support.cron_handlers", env=EACH_SECOND,
        processes=WORKERS, concurrency=5, retry_base_s=0.02, lease_s=30,
    )  # fmt: skip
    workers = one.worker_pids()
    conn = db.connect()
    kinds = ["t.effect", "t.effect_sync", "f.transaction", "t.fail"]
    jobs = enqueue_many(
        conn, [NewJob(kind, {"times": 1} if kind == "t.fail" else {}) for _ in range(JOBS // 4) for kind in kinds]
    )
    theirs = "kind <> 'tick'"
    db.wait_for(f"select count(*) from supervisor.job where {theirs}", 0, 180 if FULL else 90)
    ended = f"select status::text, count(*)::int from supervisor.jobs where {theirs} group by 1"
    assert db.rows(ended) == [("done", JOBS)]
    assert (db.effects("done") | db.effects("written")) == dict.fromkeys((job.id for job in jobs), 1)
    assert db.rows("select id from supervisor.history where crashes > 0") == []
    kinds_ended = f"select kind, attempts from supervisor.history where {theirs} group by 1, 2 order by 1"
    assert db.rows(kinds_ended) == [
        ("f.transaction", 1), ("t.effect", 1), ("t.effect_sync", 1), ("t.fail", 2),
    ]  # fmt: skip
    tick = "split_part(note, ' ', 2)::timestamptz"
    span = f"extract(epoch from max({tick}) - min({tick}))::int + 1"
    once = f"count(*) > 4 and count(*) = count(distinct note) and count(*) = {span}"
    db.wait_for(f"select {once} from effects where kind = 'tick'", True)  # at most the newest is still to run
    assert one.worker_pids() == workers
    assert one.metric("supervisor_leases_lost_total") == 0
    assert one.metric("supervisor_reaped_total") == 0
    trouble = [event for event in one.log if event.get("level") in ("error", "critical")]
    assert trouble == []
    refused = {str(event["event"]) for event in one.log if str(event["event"]).endswith(".refused")}
    assert refused == set()
    assert one.stop() == 0
