"""The LISTEN connection dies, or is deaf: jobs start late by a moment, never by a poll interval that nobody names."""

import json
import random
import signal
import time
from collections.abc import Callable

import pytest

from supervisor.client import enqueue
from tests.support import proc
from tests.support.database import Database
from tests.support.fault_handlers import MODULES
from tests.support.pgbouncer import PgBouncer
from tests.support.servers import Server
from tests.support.service import Service
from tests.support.sizes import FULL, within
from tests.support.waiting import wait_until

Start = Callable[..., Service]
LISTEN = "pg-supervisor listen%"
AWAY_ROUNDS = 30 if FULL else 10
GAP_ROUNDS = 300 if FULL else 40
EMPTY_ROUNDS = 2000 if FULL else 100
# Other tests run on this machine too. Both are far below any poll interval, which is what must show.
PROMPT_S = within(0.25, busy_s=2.0)
NOISE_S = within(1.0, busy_s=6.0)


def started_after(db: Database, job: int, since: str) -> float:
    """Seconds by the server's clock from *since* (a column of supervisor.jobs) to the job's effect."""
    db.wait_for("select count(*) from effects where job_id = %s", 1, 30, [job])
    found: float = db.value(
        f"select extract(epoch from e.at - j.{since})::float8"
        " from effects e join supervisor.jobs j on j.id = e.job_id where e.job_id = %s",
        [job],
    )
    return found


def listening(service: Service) -> bool:
    return service.metric("supervisor_listening") == 1


def wait_prompt(db: Database, deadline_s: float) -> float:
    """Seconds until a new job starts promptly again."""
    conn, began = db.connect(), time.monotonic()
    while True:
        took = started_after(db, enqueue(conn, "t.effect").id, "created_at")
        if took < PROMPT_S:
            conn.close()
            return time.monotonic() - began
        assert time.monotonic() - began < deadline_s, f"the last job took {took:.2f} s to start"


@pytest.mark.timeout(300)
def test_a_terminated_listener_is_back_within_seconds(db: Database, service: Start) -> None:
    """B24: its session is ended on the server, again and again; the gauge and readiness tell of it meanwhile."""
    one = service(handlers=MODULES, processes=1, poll_every_s=30)
    assert listening(one)
    cpu = sum(process.cpu_s for process in one.processes())
    began, slowest = time.monotonic(), 0.0
    for _ in range(AWAY_ROUNDS):
        wait_until(lambda: db.terminate_sessions(LISTEN) == 1, 5, "there is one listening session")
        took = wait_prompt(db, 5)
        slowest = max(slowest, took)
        wait_until(lambda: listening(one), 5, "it listens again")
    cpu = sum(process.cpu_s for process in one.processes()) - cpu
    share = cpu / (time.monotonic() - began)
    print(f">>> prompt again after at most {slowest:.2f} s; CPU {share:.1%}")
    assert one.events("listener.lost")
    assert len(one.worker_pids()) == 1
    assert one.stop() == 0


@pytest.mark.timeout(180)
def test_after_a_restart_of_the_server_it_listens_again(db: Database, server: Server, service: Start) -> None:
    """B24: twice, once with a crash. While it is away: readiness says polling. Afterwards it uses next to no CPU."""
    one = service(handlers=MODULES, processes=1, poll_every_s=30)
    for mode in ("fast", "immediate"):
        server.stop(mode)
        wait_until(lambda: "polling" in json.loads(one.get("/readyz")[1])["degraded"], 10, "readiness says polling")
        assert not listening(one)
        server.start()
        back = time.monotonic()
        wait_until(lambda: listening(one), 5, "it listens again")
        print(f">>> listening {time.monotonic() - back:.2f} s after the server was back ({mode})")
        took = wait_prompt(db, 5)
        print(f">>> prompt {took:.2f} s later")
        assert "polling" not in json.loads(one.get("/readyz")[1])["degraded"]
    before, began = sum(process.cpu_s for process in one.processes()), time.monotonic()
    wait_until(lambda: time.monotonic() - began > 4, 10)
    share = (sum(process.cpu_s for process in one.processes()) - before) / (time.monotonic() - began)
    print(f">>> CPU when idle: {share:.1%}")
    assert share < 0.05
    assert one.stop() == 0


@pytest.mark.timeout(1200 if FULL else 200)
def test_jobs_added_while_nobody_listens_do_not_wait_for_the_poll(db: Database, service: Start) -> None:
    """B25: the poll is a minute away; jobs fall into the gap of a reconnect, or just before or after it."""
    one = service(handlers=MODULES, processes=1, poll_every_s=60, poll_without_listen_s=60)
    rng, conn = random.Random(25), db.connect()
    slowest = 0.0
    for _ in range(GAP_ROUNDS):
        wait_until(lambda: db.terminate_sessions(LISTEN) == 1, 5, "there is one listening session")
        pause = rng.random() * (2 if FULL else 0.4) * rng.random()
        time.sleep(pause)  # the moment is the point: before, in and after the gap
        slowest = max(slowest, started_after(db, enqueue(conn, "t.effect").id, "created_at"))
        assert slowest < 5, f"after a pause of {pause:.3f} s"
    print(f">>> {GAP_ROUNDS} rounds, slowest start {slowest:.2f} s")
    assert one.stop() == 0


@pytest.mark.timeout(1200 if FULL else 200)
def test_a_job_added_while_a_claim_comes_back_empty_starts_at_once(db: Database, service: Start) -> None:
    """B25: the wake-up arrives while the only worker ends a claim that saw nothing; it must look again."""
    one = service(handlers=MODULES, processes=1, concurrency=1, prefetch=0, poll_every_s=60)
    rng, conn = random.Random(26), db.connect()
    took = []
    for _ in range(EMPTY_ROUNDS):
        first = enqueue(conn, "t.noop").id  # its end is followed by an empty claim
        db.wait_for("select status from supervisor.jobs where id = %s", "done", 10, [first])
        time.sleep(rng.random() * 0.004)  # the moment is the point: around that claim
        second = enqueue(conn, "t.effect").id
        took.append(started_after(db, second, "created_at"))
        assert took[-1] < PROMPT_S + NOISE_S
    took.sort()
    print(f">>> {len(took)} rounds: median {took[len(took) // 2] * 1000:.1f} ms, slowest {took[-1] * 1000:.0f} ms")
    assert took[int(len(took) * 0.99)] < PROMPT_S
    assert one.stop() == 0


@pytest.mark.timeout(120)
def test_a_frozen_listener_is_found_by_its_probe(db: Database, service: Start) -> None:
    """B24: its server process is stopped, as behind a half-open connection: nothing arrives and no error does."""
    one = service(handlers=MODULES, processes=1, poll_every_s=60)
    [(pid, *_)] = db.server_sessions(LISTEN)
    proc.kill(pid, signal.SIGSTOP)
    try:
        one.wait_event("listener.lost", 25)
        wait_until(lambda: listening(one), 10, "it listens again")
        assert wait_prompt(db, 5) < 5
    finally:
        proc.kill(pid, signal.SIGCONT)
    assert one.stop() == 0


@pytest.mark.timeout(120)
def test_behind_a_transaction_pooler_it_says_so_and_polls(db: Database, server: Server, service: Start) -> None:
    """B27 in small: LISTEN is accepted there and nothing ever arrives; the self-test finds it, and jobs run."""
    with PgBouncer(server) as pooler:
        one = service(
            handlers=MODULES, processes=2, concurrency=5, poll_without_listen_s=0.5,
            env={"SUPERVISOR_DATABASE_URL": pooler.conninfo(db.name)},
        )  # fmt: skip
        told = one.wait_event("listener.deaf", 15)
        assert "SUPERVISOR_LISTEN_DATABASE_URL" in str(told["remedy"])
        status, page = one.get("/readyz")
        assert (status, json.loads(page)["degraded"]) == (200, ["polling"])
        assert not listening(one)
        conn = db.connect()
        jobs = [enqueue(conn, kind).id for kind in ("t.effect", "t.effect_sync", "f.transaction") for _ in range(60)]
        jobs += [enqueue(conn, "t.fail", {"times": 1}).id for _ in range(20)]
        db.wait_for("select count(*) from supervisor.job", 0, 40)
        assert db.statuses() == {"done": len(jobs)}
        assert db.rows("select id from supervisor.history where crashes > 0") == []
        assert set((db.effects("done") | db.effects("written")).values()) == {1}
        assert len(one.worker_pids()) == 2
        assert [event for event in one.log if event.get("level") == "error"] == []
        assert one.stop() == 0


@pytest.mark.timeout(120)
def test_a_direct_address_for_listening_makes_wake_ups_work_behind_a_pooler(
    db: Database, server: Server, service: Start
) -> None:
    """B27 in small: everything else goes through the pooler, and one direct connection is enough."""
    with PgBouncer(server) as pooler:
        one = service(
            handlers=MODULES, processes=1, poll_every_s=60,
            env={
                "SUPERVISOR_DATABASE_URL": pooler.conninfo(db.name),
                "SUPERVISOR_LISTEN_DATABASE_URL": db.conninfo,
            },
        )  # fmt: skip
        one.wait_event("listener.listening", 10)
        assert wait_prompt(db, 5) < 5
        assert one.events("listener.deaf") == []
        direct = db.value(
            "select count(*) from pg_stat_activity where datname = current_database()"
            " and query ilike 'listen%%' or application_name like %s",
            [LISTEN],
        )
        assert direct == 1
        assert one.stop() == 0
