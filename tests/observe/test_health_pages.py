"""B44: the database is away; the platform is told so, nobody is restarted, and what is shown does not lie."""

import json
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from supervisor.client import enqueue, enqueue_many
from supervisor.newjob import NewJob
from tests.support.database import Database
from tests.support.health import HealthWatch
from tests.support.observe_handlers import MODULES
from tests.support.servers import Server
from tests.support.service import Service
from tests.support.sizes import FULL, within
from tests.support.waiting import wait_until

Start = Callable[..., Service]
AWAY_S = 120 if FULL else 6
SOON_S = 10


def readyz(service: Service) -> tuple[int, dict[str, Any]]:
    status, page = service.get("/readyz")
    return status, json.loads(page)


def tallied(db: Database, event: str) -> int:
    return int(db.value("select coalesce(sum(n), 0)::int from supervisor.tally where event = %s", [event]))


def run_jobs(db: Database, count: int, already: int) -> None:
    enqueue_many(db.connect(), [NewJob("t.noop")] * count)
    db.wait_for("select count(*)::int from supervisor.history", already + count, 30)


@pytest.mark.timeout(400 if FULL else 120)
def test_a_database_that_is_away_takes_readiness_and_nothing_else(
    db: Database, server: Server, service: Start, report: Callable[[str], None]
) -> None:
    one = service(handlers=MODULES, processes=2, concurrency=5, lease_s=600, renew_every_s=1, connect_timeout_s=2)
    run_jobs(db, 50, 0)
    wait_until(lambda: tallied(db, "done") == 50, SOON_S, "they are in the tally")
    wait_until(lambda: one.metric("supervisor_table_bytes") > 0, SOON_S, "tables are shown")
    workers = one.worker_pids()
    assert readyz(one) == (200, {**readyz(one)[1], "status": "ready", "reasons": [], "degraded": []})
    # These are stored and counted, but hardly tallied yet when the server goes.
    run_jobs(db, 200, 50)

    with HealthWatch(one.health_port) as live:
        gone = time.monotonic()
        server.stop("immediate")
        wait_until(lambda: readyz(one)[0] == 503, SOON_S, "not ready")
        turned = time.monotonic() - gone

        def told() -> bool:
            answer = readyz(one)[1]
            return (
                "database_unreachable" in answer["degraded"]
                and "the database cannot be reached" in answer["reasons"]
                and one.metric("supervisor_database_up") == one.metric("supervisor_ready") == 0
                and one.metric("supervisor_degraded", reason="database_unreachable") == 1
            )

        # An answer that was on its way when the server went may be taken for its return, for a moment.
        wait_until(told, SOON_S, "readiness and the page say why")
        wait_until(lambda: "supervisor_queue_jobs{" not in one.get("/metrics")[1], SOON_S, "stale depths are gone")
        wait_until(lambda: "supervisor_table_bytes{" not in one.get("/metrics")[1], 15, "stale sizes are gone")
        assert one.metric("supervisor_refresh_age_seconds", figures="queues") > 1
        wait_until(lambda: time.monotonic() - gone > AWAY_S, AWAY_S + 1, "the outage lasts")
        assert one.metric("supervisor_refresh_age_seconds", figures="queues") >= AWAY_S - 2
        server.start()
        back = time.monotonic()
        wait_until(lambda: readyz(one)[0] == 200, SOON_S, "ready again")
        returned = time.monotonic() - back
        wait_until(lambda: "supervisor_table_bytes{" in one.get("/metrics")[1], SOON_S, "figures are shown again")
    report(
        f"not ready after {turned:.1f} s, ready {returned:.1f} s after the return;"
        f" /livez silent for {live.longest_silence_s:.2f} s at most in {live.answers} answers"
    )
    assert live.bad == [], "liveness does not ask the database"
    assert live.longest_silence_s < within(1, busy_s=1.9), "an attempt to connect takes two"
    assert one.worker_pids() == workers, "nobody was restarted"
    run_jobs(db, 10, 250)
    wait_until(lambda: tallied(db, "done") == 260, 20, "the tally has each once, those of the outage too")
    assert one.metric("supervisor_jobs_total", outcome="done") == 260
    assert one.stop() == 0
    assert tallied(db, "done") == 260


@pytest.mark.timeout(120)
def test_a_pool_that_is_used_up_takes_neither_readiness_nor_the_figures(db: Database, service: Start) -> None:
    """The handlers' connections are theirs alone: probes, figures, acks and claims have others."""
    one = service(handlers=f"{MODULES},tests.support.fault_handlers", processes=1, concurrency=6, pool_size=1)
    conn = db.connect()
    jobs = [enqueue(conn, "f.transaction", {"inside_s": 4.0}).id for _ in range(3)]
    wait_until(lambda: one.metric("supervisor_pool_connections", state="waiting") >= 1, SOON_S, "callers wait")
    with HealthWatch(one.health_port) as live, HealthWatch(one.health_port, "/readyz") as ready:
        enqueue_many(conn, [NewJob("t.noop")] * 20)
        db.wait_for("select count(*)::int from supervisor.history where kind = 't.noop'", 20, 6)
        wait_until(lambda: one.metric("supervisor_refresh_age_seconds", figures="queues") < 1, 5, "figures are fresh")
        wait_until(
            lambda: one.metric("supervisor_queue_jobs", status="running") >= 2, 3, "so are those of running jobs"
        )
    assert live.bad == ready.bad == []
    assert max(live.longest_silence_s, ready.longest_silence_s) < within(1, busy_s=3)
    db.wait_for("select count(*)::int from supervisor.history where id = any(%s)", len(jobs), 30, [jobs])
    assert one.stop() == 0


def test_what_ended_before_a_stop_is_in_the_tally_after_it(db: Database, service: Start) -> None:
    """The timer is far from its time: the last write is made at the end."""
    one = service(handlers=MODULES, processes=2, watch_every_s=3600)
    enqueue(db.connect(), "o.unlike", {"text": "x"})
    enqueue(db.connect(), "o.order", queue="orders")
    db.wait_for("select count(*) from supervisor.job", 0, SOON_S)
    assert one.stop() == 0
    assert db.rows("select queue, event, n from supervisor.tally order by 1") == [
        ("default", "dead", 1),
        ("orders", "done", 1),
    ]


def test_degraded_states_have_names(db: Database, service: Start) -> None:
    """Polling, a newer schema, and draining, each as /readyz and the gauge say it."""
    db.execute(
        "insert into supervisor.migration select (jsonb_populate_record(m, jsonb_build_object('version', m.version + 1)"
        " || jsonb_build_object('name', 'later'))).* from supervisor.migration m order by version desc limit 1"
    )
    one = service(handlers=MODULES, processes=1, wake="false", drain_timeout_s=20)
    status, answer = readyz(one)
    assert (status, answer["degraded"]) == (200, ["polling", "schema_newer"])
    assert one.metric("supervisor_degraded") == 2
    assert one.metric("supervisor_listening") == 0
    assert "supervisor_listening 0" in one.get("/metrics")[1]
    assert one.metric("supervisor_poll_interval_seconds") == 1
    enqueue(db.connect(), "t.sleep", {"seconds": 1.5})
    db.wait_for("select count(*)::int from effects", 1, SOON_S)
    one.send(signal.SIGTERM)
    wait_until(lambda: readyz(one)[0] == 503, SOON_S, "draining")
    answer = readyz(one)[1]
    assert answer["degraded"] == ["draining", "polling", "schema_newer"]
    assert answer["reasons"] == ["the service is draining"]
    assert one.wait_exit() == 0


@pytest.mark.parametrize(("table", "where"), [("dead_letter", "watch"), ("tally", "tally")])
def test_a_look_that_is_stuck_delays_no_renewal_and_no_job(
    db: Database, service: Start, table: str, where: str
) -> None:
    """Reading figures and writing the tally have a connection of their own, and a limit of time."""
    one = service(handlers=MODULES, processes=1, lease_s=3, statement_timeout_s=1)
    run_jobs(db, 5, 0)
    wait_until(lambda: one.metric("supervisor_queue_lanes") > 0, SOON_S, "figures are shown")
    conn = db.connect(autocommit=False)
    conn.execute(f"lock table supervisor.{table} in access exclusive mode".encode())
    run_jobs(db, 5, 5)
    wait_until(lambda: one.metric("supervisor_errors_total", where=where) >= 3, 20, "it was given up three times")
    assert one.metric("supervisor_lease_renewal_age_seconds") < 2
    assert one.metric("supervisor_degraded", reason="fenced") == 0
    assert readyz(one)[0] == 200
    run_jobs(db, 5, 10)
    assert db.value("select min(expires_at) > clock_timestamp() from supervisor.session where closed_at is null")
    conn.rollback()
    wait_until(lambda: one.metric("supervisor_refresh_age_seconds", figures="queues") < 1, SOON_S, "they go on")
    wait_until(lambda: tallied(db, "done") == 15, SOON_S, "and nothing is missing, nor twice")
    assert one.stop() == 0
