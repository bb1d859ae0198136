"""The database freezes, is away, or has no room: the service waits, and is itself again soon after.

Freezing is SIGSTOP of the server: connections stay up and nobody answers, which no error announces.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import psycopg
import pytest

from supervisor.client import enqueue, enqueue_many
from supervisor.newjob import NewJob
from tests.support import proc
from tests.support.database import Database
from tests.support.fault_handlers import MODULES
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.service import Event, Service
from tests.support.sizes import FULL, within
from tests.support.waiting import wait_until

Start = Callable[..., Service]
MEMORY_MB = 50
# B18: 4 workers at 500 jobs/s, frozen for 30 s, then for 3 leases. A lease that outlives a freeze must do so with a
# renewal that was due just when it began, and before the service fences itself at 0.7 of it.
WORKERS, PER_S = (4, 500) if FULL else (2, 200)
FREEZE_S, LONG_LEASE_S = (30.0, 60.0) if FULL else (6.0, 15.0)
SHORT_LEASE_S = 10.0 if FULL else 3.0
# B29: the database is down for so long when the service starts, and for so long under load.
DOWN_AT_START_S, AWAY_S = (60.0, 90.0) if FULL else (4.0, 8.0)
ERRORS = ("warning", "error", "critical")


class Load(threading.Thread):
    """Enqueues small jobs at a steady rate, straight at the server; goes on when it was away."""

    def __init__(self, db: Database, per_s: int, kind: str = "t.effect") -> None:
        super().__init__(name="load", daemon=True)
        self._db, self._per_s, self._kind = db, per_s, kind
        self._end = threading.Event()
        self.jobs: list[int] = []
        self.unsure = 0

    def run(self) -> None:
        conn: psycopg.Connection[Any] | None = None
        batch = max(1, self._per_s // 20)
        while not self._end.wait(batch / self._per_s):
            try:
                if conn is None or conn.closed:
                    conn = psycopg.connect(self._db.conninfo, autocommit=True, connect_timeout=5)
                self.jobs += [job.id for job in enqueue_many(conn, [NewJob(self._kind)] * batch)]
            except psycopg.Error:  # away, or up and refusing to write
                self.unsure += batch
                if conn is not None:
                    conn.close()
                conn = None
        if conn is not None:
            conn.close()

    def stop(self) -> list[int]:
        self._end.set()
        self.join(30)
        return self.jobs


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    """Stop every process of the server; they go on at the end."""
    pids = [server.pid, *(process.pid for process in proc.children(server.pid))]
    try:
        for pid in pids:
            proc.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in [*(process.pid for process in proc.children(server.pid)), *pids]:
            proc.kill(pid, signal.SIGCONT)


def wait_out(seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Let an outage last so long, looking on."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        meanwhile()
        time.sleep(min(left, 0.25))


def memory(service: Service) -> int:
    """Bytes that the parent and the workers have to themselves."""
    return sum(_private(pid) for pid in [service.parent_pid, *service.worker_pids()])


def _private(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Private_"))
    except OSError:
        return 0


def error_rates(events: list[Event]) -> dict[str, int]:
    """The most lines within one second, for each event name, process and source of warnings and errors."""
    times: dict[tuple[Any, ...], list[float]] = {}
    for event in events:
        if event.get("level") in ERRORS:
            who = (event["event"], event.get("pid"), event.get("slot"), event.get("logger"))
            when = datetime.fromisoformat(str(event["timestamp"]).replace("Z", "+00:00")).timestamp()
            times.setdefault(who, []).append(when)
    worst: dict[str, int] = {}
    for who, found in times.items():
        most = max(sum(1 for other in found if at <= other < at + 0.95) for at in found)
        worst[who[0]] = max(worst.get(who[0], 0), most)
    return worst


def all_done(db: Database, jobs: list[int], deadline_s: float = 30) -> None:
    """Wait until nothing is left; nothing may be stuck, dead or lost."""
    db.wait_for("select count(*) from supervisor.job", 0, deadline_s)
    assert set(db.statuses()) == {"done"}
    done = {row[0] for row in db.rows("select id from supervisor.history")}
    assert set(jobs) <= done


@pytest.mark.timeout(300 if FULL else 150)
def test_a_freeze_shorter_than_the_lease_costs_no_second_run(db: Database, server: Server, service: Start) -> None:
    """B18: frozen longer than every statement limit, shorter than the lease: each job done once."""
    one = service(
        handlers=MODULES, processes=WORKERS, concurrency=10, lease_s=LONG_LEASE_S, renew_every_s=2,
        statement_timeout_s=1, connect_timeout_s=1,
    )  # fmt: skip
    load = Load(db, PER_S)
    load.start()
    db.wait_for("select count(*) > 200 from supervisor.history", True, 20)
    before, most = memory(one), 0

    def look() -> None:
        nonlocal most
        most = max(most, memory(one))

    with frozen(server):
        wait_out(FREEZE_S, look)
    db.wait_for("select count(*) > %s from supervisor.history", True, 30, [7 * PER_S])
    jobs = load.stop()
    all_done(db, jobs)
    look()
    ran = Counter(db.effects("done").values())
    print(f">>> {len(jobs)} jobs, runs {dict(ran)}, memory +{(most - before) / 2**20:.1f} MB")
    print(f">>> most lines of one second: {error_rates(one.log)}")
    assert set(ran) == {1}
    assert db.rows("select id from supervisor.history where attempts <> 1 or crashes <> 0") == []
    assert one.metric("supervisor_leases_lost_total") == 0
    assert most - before < MEMORY_MB * 2**20
    assert max(error_rates(one.log).values(), default=0) <= 2  # one per second and process, seen through a window
    assert len(one.worker_pids()) == WORKERS
    assert one.stop() == 0


@pytest.mark.timeout(300 if FULL else 150)
@pytest.mark.parametrize("fence", [False, True], ids=["unfenced", "fenced"])
def test_after_three_leases_of_silence_second_runs_are_lost_leases(
    db: Database, service: Start, proxy: Proxy, fence: bool
) -> None:
    """B18: A hears nothing for 3 leases while B works on. Runs minus jobs are the lost leases; nothing is stuck."""
    first = service(
        handlers=MODULES, processes=WORKERS, concurrency=5, prefetch=0, lease_s=SHORT_LEASE_S, statement_timeout_s=1,
        fence=fence, retry_base_s=0.05, env={"SUPERVISOR_DATABASE_URL": proxy.conninfo},
    )  # fmt: skip
    load = Load(db, PER_S // 2 if not FULL else PER_S)
    conn = db.connect()
    slow = [enqueue(conn, "f.slow", {"seconds": 2 + SHORT_LEASE_S}).id for _ in range(6)]
    db.wait_for("select count(*) from effects where note = 'start'", 6, 10)
    second = service(handlers=MODULES, processes=1, concurrency=10, lease_s=SHORT_LEASE_S, retry_base_s=0.05)
    load.start()
    db.wait_for("select count(*) > 100 from supervisor.history", True, 20)
    before, most = memory(first), 0

    def look() -> None:
        nonlocal most
        most = max(most, memory(first))

    proxy.freeze()
    wait_out(0.5 + 3 * SHORT_LEASE_S, look)
    proxy.thaw()
    jobs = load.stop()
    all_done(db, [*jobs, *slow], 60)
    runs = Counter(db.effects("start")) | Counter(db.effects("done"))
    repeated = sum(runs.values()) - len(runs)
    wait_until(lambda: first.metric("supervisor_leases_lost_total") >= repeated, 15, "what was lost is counted")
    lost = first.metric("supervisor_leases_lost_total")
    crashes = db.value("select coalesce(sum(crashes), 0)::int from supervisor.history")
    reaped = second.metric("supervisor_reaped_total")
    print(f">>> {len(runs)} jobs, {repeated} repeated, {lost:g} lost, {crashes} crashes, {reaped:g} reaped")
    print(f">>> memory +{(most - before) / 2**20:.1f} MB; lines of one second: {error_rates(first.log)}")
    assert second.metric("supervisor_leases_lost_total") == 0
    assert repeated == lost
    assert repeated >= len(slow)
    assert most - before < MEMORY_MB * 2**20
    assert max(error_rates(first.log).values()) <= 2
    assert second.stop() == 0
    assert first.stop() == 0, "what was cut by a fence is no part of this stop"


@pytest.mark.timeout(150)
def test_a_frozen_server_that_comes_back_finds_its_supervisor_before_its_reaper(
    db: Database, server: Server, service: Start
) -> None:
    """B18: nobody could renew meanwhile, so nobody is taken for dead: no job is charged or runs twice."""
    one = service(
        handlers=MODULES, processes=2, concurrency=5, lease_s=3, reap_every_s=0.05, statement_timeout_s=1, fence=False
    )
    conn = db.connect()
    jobs = [enqueue(conn, "f.slow", {"seconds": 14.0}).id for _ in range(4)]
    db.wait_for("select count(*) from effects where note = 'start'", 4, 10)
    with frozen(server):
        wait_out(9.5)
    all_done(db, jobs)
    assert db.effects("start") == dict.fromkeys(jobs, 1)
    assert db.rows("select distinct attempts, crashes from supervisor.history") == [(1, 0)]
    assert one.metric("supervisor_leases_lost_total") == 0
    assert one.stop() == 0


@pytest.mark.timeout(150)
def test_claims_stop_while_results_wait_at_their_limit(db: Database, service: Start, proxy: Proxy) -> None:
    """B18: results that cannot be stored hold back claims, not memory without end; all of them are stored later.

    Once the wish to claim was forgotten when the results of a whole backlog were stored at once: the worker
    then slept in front of a full queue.
    """
    one = service(
        handlers=MODULES, processes=1, concurrency=4, prefetch=100, max_unacked=20, lease_s=30, statement_timeout_s=5,
        env={"SUPERVISOR_DATABASE_URL": proxy.conninfo},
    )  # fmt: skip
    gate = db.connect(autocommit=False)
    gate.execute("lock table supervisor.history in exclusive mode")  # acks wait here, claims would not
    jobs = [job.id for job in enqueue_many(db.connect(), [NewJob("t.effect")] * 300)]
    still = wait_settled(db)
    print(f">>> {still} jobs had run when no result could be stored")
    assert still <= 4 + 100 + 20
    proxy.freeze()
    gate.commit()
    assert wait_settled(db) == still
    proxy.thaw()
    all_done(db, jobs)
    assert set(db.effects("done").values()) == {1}
    assert one.metric("supervisor_leases_lost_total") == 0
    assert one.stop() == 0


def wait_settled(db: Database) -> int:
    """The number of effects, once it has not changed for a second."""
    last, since = -1, time.monotonic()

    def still() -> bool:
        nonlocal last, since
        found = db.value("select count(*)::int from effects")
        if found != last:
            last, since = found, time.monotonic()
        return time.monotonic() - since > 1

    wait_until(still, 20, "no more effects")
    return last


@pytest.mark.timeout(150)
def test_starts_while_the_database_is_down(db: Database, server: Server, service: Start) -> None:
    """B29, B44: it waits with growing pauses, alive and not ready, and works as soon as there is a database."""
    server.stop("immediate")
    one = Service(
        db,
        handlers=MODULES,
        processes=2,
        health_port="auto",
        run_dir=f"/tmp/pgsv-run-{os.getpid()}",
        connect_timeout_s=2,
    )
    with one:
        one.wait_event("database.unreachable", 10)
        wait_out(DOWN_AT_START_S)
        assert one.alive
        server.start()
        started = time.monotonic()
        one.wait_ready(15)
        job = enqueue(db.connect(), "t.effect").id
        db.wait_for("select status from supervisor.jobs where id = %s", "done", 10, [job])
        print(f">>> first job done {time.monotonic() - started:.1f} s after the server was back")
        said = len([event for event in one.log if event["event"] == "database.unreachable"])
        print(f">>> {said} lines in {DOWN_AT_START_S:g} s")
        assert said <= DOWN_AT_START_S + 3, "at most one line per second"
        if FULL:
            assert said < 0.75 * DOWN_AT_START_S, "the pauses grow"
        assert one.stop() == 0


@pytest.mark.timeout(300 if FULL else 180)
def test_an_outage_under_load_ends_when_the_database_is_back(db: Database, server: Server, service: Start) -> None:
    """B29, B44: away, crashed and started anew; within 10 s every part works and the rate is as before."""
    one = service(handlers=MODULES, processes=2, concurrency=10, lease_s=30, renew_every_s=2, retry_base_s=0.1)
    workers = one.worker_pids()
    load = Load(db, 100)
    load.start()
    db.wait_for("select count(*) > 300 from supervisor.history", True, 20)
    live: list[tuple[int, float]] = []

    def look() -> None:
        asked = time.monotonic()
        live.append((one.get("/livez")[0], time.monotonic() - asked))

    assert one.get("/readyz")[0] == 200
    server.stop("immediate")
    gone = time.monotonic()
    wait_until(lambda: one.get("/readyz")[0] == 503, 10, "not ready")
    print(f">>> not ready after {time.monotonic() - gone:.1f} s")
    wait_out(gone + AWAY_S - time.monotonic(), look)
    server.start()
    back = time.monotonic()
    wait_until(lambda: one.get("/readyz")[0] == 200, 10, "ready again")
    print(f">>> ready after {time.monotonic() - back:.1f} s")
    wait_until(lambda: one.metric("supervisor_listening") == 1, back + 10 - time.monotonic(), "it listens again")
    db.wait_for("select count(*) < 30 from supervisor.job", True, max(1.0, back + 10 - time.monotonic()))
    print(f">>> backlog worked off after {time.monotonic() - back:.1f} s")
    assert_every_part_works(db, one)
    jobs = load.stop()
    all_done(db, jobs)
    assert {status for status, _ in live} == {200}
    assert max(took for _, took in live) < within(1, busy_s=3)
    assert one.worker_pids() == workers, "nobody exited"
    assert set(Counter(db.effects("done").values())) == {1}
    print(f">>> lines of one second: {error_rates(one.log)}; livez at most {max(took for _, took in live):.3f} s")
    assert max(error_rates(one.log).values()) <= 2
    assert one.stop() == 0


def assert_every_part_works(db: Database, service: Service) -> None:
    """Listener, renewals, reaper, delayed jobs, beat and metrics, each by what it does."""
    expires, beats = (
        f"select max(expires_at) from supervisor.{table}" for table in ("session where closed_at is null", "parent")
    )
    seen, beat = db.value(expires), db.value(beats)
    conn = db.connect()
    began = time.monotonic()
    job = enqueue(conn, "t.effect").id
    db.wait_for("select status from supervisor.jobs where id = %s", "done", 5, [job])
    assert time.monotonic() - began < within(2, busy_s=4), "woken, not polled"
    late = enqueue(conn, "t.effect", in_=0.5).id
    db.wait_for("select status from supervisor.jobs where id = %s", "done", 5, [late])
    # A holder that nobody renews: the reaper is there, and so is the sweep.
    lost = enqueue(conn, "t.effect", queue="lost").id
    db.wait_for("select status from supervisor.jobs where id = %s", "done", 5, [lost])
    db.execute(
        "insert into supervisor.session (id, name, expires_at) values (4711, '', clock_timestamp() - interval '1 s')"
    )
    held = db.value(
        "insert into supervisor.job (kind, lease, claims, attempts) values ('t.effect', 4711, 1, 1) returning id"
    )
    db.wait_for("select status from supervisor.jobs where id = %s", "done", 10, [held])
    wait_until(lambda: db.value(expires) > seen, 15, "leases are renewed")
    wait_until(lambda: db.value(beats) > beat, 15, "it beats")
    assert service.metric("supervisor_jobs_total", outcome="done") > 0


@pytest.mark.timeout(150)
def test_half_of_all_connects_fail(db: Database, service: Start, proxy: Proxy, server: Server) -> None:
    """B29: connections are cut and every other attempt to connect is refused, then the server has no slots left."""
    one = service(
        handlers=MODULES, processes=2, concurrency=10, retry_base_s=0.1, lease_s=30, renew_every_s=2,
        env={"SUPERVISOR_DATABASE_URL": proxy.conninfo},
    )  # fmt: skip
    workers = one.worker_pids()
    load = Load(db, 100)
    load.start()
    db.wait_for("select count(*) > 100 from supervisor.history", True, 20)
    proxy.refuse = lambda number: number % 2 == 0
    for _ in range(20 if FULL else 8):
        proxy.cut()
        wait_out(0.5)
    # Now the server itself refuses: the role has hardly any connections, and the service's are taken away.
    role = db.value("select current_user")
    db.connect()
    try:
        server.execute(f"alter role {role} connection limit 6")
        for _ in range(6 if FULL else 3):
            db.terminate_sessions("pg-supervisor%")
            wait_out(1)
    finally:
        server.execute(f"alter role {role} connection limit -1")
    proxy.refuse = lambda _: False
    back = time.monotonic()
    jobs = load.stop()
    all_done(db, jobs, 10)
    print(f">>> all done {time.monotonic() - back:.1f} s after; {len(jobs)} jobs, lost {load.unsure}")
    wait_until(lambda: one.metric("supervisor_listening") == 1, 10, "it listens again")
    assert_every_part_works(db, one)
    assert one.worker_pids() == workers
    assert set(Counter(db.effects("done").values())) == {1}
    assert one.metric("supervisor_leases_lost_total") == 0
    print(f">>> lines of one second: {error_rates(one.log)}")
    assert one.stop() == 0
