"""What is counted is what happened: a known set of jobs, and every number they leave."""

from collections.abc import Callable

from supervisor.client import enqueue, enqueue_many
from supervisor.newjob import NewJob
from tests.support import proc
from tests.support.database import Database
from tests.support.observe_handlers import MODULES
from tests.support.service import Service
from tests.support.waiting import wait_until

Start = Callable[..., Service]


def test_each_outcome_is_counted_once_under_its_name(db: Database, service: Start) -> None:
    one = service(handlers=MODULES, processes=2, concurrency=3, retry_base_s=0.02)
    conn = db.connect()
    enqueue_many(conn, [NewJob("o.order", queue="orders")] * 40)
    enqueue_many(conn, [NewJob("t.fail", {"times": 2})] * 3)
    enqueue_many(conn, [NewJob("t.fail", max_attempts=2)] * 2)
    enqueue(conn, "o.unlike", {"text": "x"})
    enqueue(conn, "t.effect", {"no_such": 1})  # its payload fits nothing
    db.wait_for("select count(*) from supervisor.job", 0, 20)
    # Samples come a quarter of a second later; of a worker that dies meanwhile they do not come.
    wait_until(lambda: one.metric("supervisor_job_wait_seconds_count", kind="o.order") == 40, 5, "waits are written")
    wait_until(lambda: one.metric("supervisor_ack_batch_sum") == 40 + 3, 5, "batches are written")
    crash = enqueue(conn, "t.exit", max_crashes=2).id
    db.wait_for("select status from supervisor.jobs where id = %s", "dead", 20, [crash])

    def jobs(kind: str, outcome: str, queue: str = "default") -> float:
        return one.metric("supervisor_jobs_total", queue=queue, kind=kind, outcome=outcome)

    wait_until(lambda: jobs("t.exit", "dead") == 1, 10, "the last death is counted")
    assert jobs("o.order", "done", "orders") == 40
    assert (jobs("t.fail", "failed"), jobs("t.fail", "done"), jobs("t.fail", "dead")) == (3 * 2 + 2, 3, 2)
    assert jobs("o.unlike", "dead") == 1
    assert jobs("t.effect", "dead") == 1
    assert (jobs("t.exit", "crashed"), jobs("t.exit", "dead")) == (1, 1)
    total = 40 + 3 * 3 + 2 * 2 + 1 + 1 + 2
    assert one.metric("supervisor_jobs_total") == total
    # Deaths of the process are no ends of a handler's run: they have no time in it.
    assert one.metric("supervisor_job_run_seconds_count") == total - 2
    assert one.metric("supervisor_job_run_seconds_count", kind="o.order", queue="orders") == 40
    assert one.metric("supervisor_retries_total", kind="t.fail", queue="default") == 3 * 2 + 2
    assert one.metric("supervisor_crashes_total", signal="exit") == 2
    assert one.metric("supervisor_restarts_total", reason="crash") == 2

    claims = ("supervisor_claims_total", "supervisor_claim_batch_count", "supervisor_claim_seconds_count")
    wait_until(lambda: len({one.metric(name) for name in claims}) == 1, 5, "each claim is in all three")
    assert one.metric("supervisor_wake_seconds_count") >= 1
    assert one.metric("supervisor_slots") == 6
    assert one.metric("supervisor_notices_total") >= 1

    # And the database's own view of it.
    wait_until(lambda: one.metric("supervisor_queue_jobs", status="dead") == 2 + 1 + 1 + 1, 10, "the dead are shown")
    wait_until(
        lambda: db.value("select coalesce(sum(n), 0)::int from supervisor.tally") == total, 10, "the tally has them all"
    )
    assert one.stop() == 0


def test_what_a_killed_worker_held_is_counted_by_what_became_of_it(db: Database, service: Start) -> None:
    """One running alone crashes; those that waited behind it are given back."""
    one = service(handlers=MODULES, processes=1, concurrency=1, prefetch=5, retry_base_s=0.02)
    conn = db.connect()
    enqueue_many(conn, [NewJob("t.sleep", {"seconds": 0.4})] * 4)
    db.wait_for("select count(*)::int from effects where note = 'start'", 1, 10)
    db.wait_for("select count(*)::int from supervisor.jobs where status = 'running'", 4, 10)
    proc.kill(one.worker_pids()[0])
    db.wait_for("select count(*)::int from supervisor.history", 4, 20)
    wait_until(lambda: one.metric("supervisor_jobs_total", outcome="done") == 4, 10)
    assert one.metric("supervisor_jobs_total", outcome="crashed", kind="t.sleep", queue="default") == 1
    assert one.metric("supervisor_released_total", queue="default", reason="neighbour_died") == 3
    assert one.metric("supervisor_crashes_total", signal="SIGKILL") == 1
    assert one.stop() == 0


def test_jobs_taken_from_a_lost_holder_are_counted(db: Database, service: Start) -> None:
    one = service(handlers=MODULES, processes=1, retry_base_s=0.02)
    db.execute(
        "insert into supervisor.session (id, name, expires_at) values (4711, '', clock_timestamp() - interval '1 s')"
    )
    db.execute(
        "insert into supervisor.job (kind, lease, claims, attempts, max_crashes)"
        " values ('t.noop', 4711, 1, 1, 3), ('t.noop', 4711, 1, 1, 1)"
    )
    db.wait_for("select count(*)::int from supervisor.dead_letter", 1, 20)
    db.wait_for("select count(*)::int from supervisor.history", 1, 20)
    wait_until(lambda: one.metric("supervisor_jobs_total", outcome="done") == 1, 10)
    assert one.metric("supervisor_reaped_total") == 2
    assert one.metric("supervisor_jobs_total", queue="default", kind="other", outcome="crashed") == 1
    assert one.metric("supervisor_jobs_total", queue="default", kind="other", outcome="dead") == 1
    assert one.stop() == 0
