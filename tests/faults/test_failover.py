"""The server that took writes takes none any more; nobody touches the service.

the primary is lost under load, its standby promoted, and the old primary back at its address as a standby
a server that stays up, answers, lets everybody listen, and refuses to write
"""

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from supervisor import NewJob, enqueue_many
from supervisor.db.migrate import migrate
from tests.faults.test_outages import Load, all_done, assert_every_part_works, error_rates, wait_out
from tests.support.database import EFFECTS, Database
from tests.support.fault_handlers import MODULES
from tests.support.replicas import Replicas
from tests.support.servers import Server
from tests.support.service import Service
from tests.support.sizes import FULL
from tests.support.waiting import wait_until

PER_S = 500


class _Asked(threading.Thread):
    """Enqueues about PER_S jobs a second and keeps the ids whose commit was acknowledged."""

    def __init__(self, conninfo: str) -> None:
        super().__init__(daemon=True)
        self._conninfo = conninfo
        self._halt = threading.Event()
        self.acknowledged: list[int] = []
        self.failures = 0

    def run(self) -> None:
        conn: psycopg.Connection[Any] | None = None
        while not self._halt.wait(10 / PER_S):
            try:
                if conn is None or conn.closed:
                    conn = psycopg.connect(self._conninfo)
                made = enqueue_many(conn, [NewJob("t.effect", {}) for _ in range(10)])
                conn.commit()
            except psycopg.Error:
                self.failures += 1
                if conn is not None:
                    conn.close()
                continue
            self.acknowledged += [job.id for job in made]

    def stop(self) -> None:
        self._halt.set()
        self.join(20)


class _App:
    """What the service needs to know of a database."""

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo


OURS = "pg-supervisor%"


@pytest.mark.timeout(240)
def test_a_failover_loses_no_acknowledged_job_and_needs_no_operator(tmp_path: Any) -> None:
    """B28: read-only and dead servers are left; work goes on within 10 s of a writable one being there. Then the old
    primary is back, named first in the address and healthy: nobody is drawn to it, whatever has to connect anew."""
    with Replicas() as replicas:
        migrate(replicas.conninfo)
        with replicas.connect(0) as conn:
            conn.execute(EFFECTS.encode())
        service = Service(
            _App(replicas.address),  # type: ignore[arg-type]
            handlers=MODULES,
            processes=2,
            lease_s=6,
            statement_timeout_s=3,
            connect_timeout_s=2,
            poll_every_s=60,
            health_port="auto",
            run_dir=tmp_path,
            env={"EFFECTS_DATABASE_URL": replicas.conninfo},
        )
        with service:
            service.wait_ready()
            asked = _Asked(replicas.conninfo)
            asked.start()
            done: Callable[[int], int] = lambda number: _count(replicas, number)  # noqa: E731
            wait_until(lambda: done(0) > 500, 30, "jobs run on the primary")
            replicas.kill_primary()
            threading.Event().wait(random.uniform(0.2, 1.0))  # the cluster manager makes up its mind
            promoted_in = replicas.promote()
            back = time.monotonic()
            before = done(1)
            wait_until(lambda: done(1) > before, 30, "jobs run on the promoted server")
            resumed_in = time.monotonic() - back
            sent = len(asked.acknowledged)
            wait_until(lambda: len(asked.acknowledged) > sent + 200, 30, "the producer is back")

            replicas.rejoin()
            avoided_in = _everyone_connects_anew(replicas, service)
            asked.stop()
            _wait_empty(replicas)
            worst = error_rates(service.log)
            code = service.stop()
        with replicas.connect(1) as conn:
            stored = {row[0] for row in conn.execute("select id from supervisor.jobs where status = 'done'")}
            effects = {row[0] for row in conn.execute("select job_id from effects")}
        lost = set(asked.acknowledged) - stored
        print(
            f"failover: {len(asked.acknowledged)} acknowledged, promoted in {promoted_in:.1f} s, jobs ran again "
            f"{resumed_in:.1f} s later; with the old primary back, {avoided_in:.1f} s after all had to connect anew; "
            f"most lines of one second: {worst}"
        )
        assert code == 0
        assert not lost, f"{len(lost)} acknowledged jobs are gone, such as {sorted(lost)[:5]}"
        assert set(asked.acknowledged) <= effects
        assert resumed_in < 15, "the documented bound is 10 s; the machine may be busy"
        assert avoided_in < 15
        assert max(worst.values()) <= 2  # one a second and worker, on two workers


def _everyone_connects_anew(replicas: Replicas, service: Service) -> float:
    """Cut every session of the service on the new primary: acks, handlers' pool, leases, sweeps, look, LISTEN.

    Returns the seconds until jobs of each kind run again, the pool's included.
    """
    with replicas.connect(1) as conn:
        cut = conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name like %s", [OURS]
        )
        assert len(cut.fetchall()) >= 3, "those of the workers, and LISTEN; idle ones may be closed"
        began = time.monotonic()
        pooled = [job.id for job in enqueue_many(conn, [NewJob("f.transaction")] * 50)]
        written = "select count(*) from effects where note = 'written' and job_id = any(%s)"
        wait_until(
            lambda: conn.execute(written, [pooled]).fetchone() == (50,), 30, "handlers' own transactions are committed"
        )
    took = time.monotonic() - began
    wait_until(lambda: service.metric("supervisor_listening") == 1, 15, "it listens again")
    assert len(replicas.sessions(1, "pg-supervisor listen%")) == 1
    wait_until(lambda: replicas.sessions(0, OURS) == [], 10, "nobody stays on the standby")
    return took


REFUSED_S = 20.0 if FULL else 3.0


@pytest.mark.timeout(180)
def test_a_server_that_refuses_writes_is_left_and_found_again(db: Database, server: Server, service: Any) -> None:
    """B28: it is up and healthy, LISTEN works, and every write is refused, as by an operator before a switchover.
    Nothing is overruled, lost or charged; when it writes again, so do all parts, without a restart."""
    one = service(
        handlers=MODULES, processes=2, concurrency=10, pool_size=2, lease_s=60, renew_every_s=1, poll_every_s=60,
        retry_base_s=0.1, retry_cap_s=1,
    )  # fmt: skip
    workers = one.worker_pids()
    load = Load(db, 100)
    load.start()
    pooled = Load(db, 20, "f.transaction")
    pooled.start()
    db.wait_for("select count(*) > 300 from supervisor.history", True, 20)
    marks: list[int] = []
    try:
        server.execute("alter system set default_transaction_read_only = on")
        server.reload()
        wait_until(lambda: one.get("/readyz")[0] == 503, 10, "not ready")
        wait_out(REFUSED_S, lambda: marks.append(one.get("/livez")[0]))
        written = db.value("select count(*)::int from supervisor.history")
        wait_out(1.0)
        assert db.value("select count(*)::int from supervisor.history") == written, "somebody overrules the operator"
    finally:
        server.execute("alter system reset default_transaction_read_only")
        server.reload()
    back = time.monotonic()
    wait_until(lambda: one.get("/readyz")[0] == 200, 10, "ready again")
    wait_until(lambda: one.metric("supervisor_listening") == 1, back + 10 - time.monotonic(), "it listens")
    db.wait_for("select count(*) > %s from supervisor.history", True, back + 10 - time.monotonic(), [written + 100])
    print(f">>> works again {time.monotonic() - back:.1f} s after it was allowed to")
    assert_every_part_works(db, one)
    jobs, more = load.stop(), pooled.stop()
    all_done(db, [*jobs, *more])
    assert set(marks) == {200}
    assert one.worker_pids() == workers, "nobody exited"
    assert set((db.effects("done") | db.effects("written")).values()) == {1}
    assert db.rows("select id from supervisor.history where crashes > 0 and kind <> 't.effect'") == []
    worst = error_rates(one.log)
    print(f">>> lines of one second: {worst}")
    assert max(worst.values()) <= 2
    assert one.stop() == 0


def _count(replicas: Replicas, number: int) -> int:
    with replicas.connect(number) as conn:
        [(count,)] = conn.execute("select count(*) from supervisor.history").fetchall()
        return int(count)


def _wait_empty(replicas: Replicas) -> None:
    def empty() -> bool:
        with replicas.connect(1) as conn:
            return conn.execute("select count(*) from supervisor.job").fetchone() == (0,)

    wait_until(empty, 60, "the queue is empty")
