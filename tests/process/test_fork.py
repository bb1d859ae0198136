"""Making processes out of a busy parent: no session is broken, no descriptor leaks, no line is said twice.

The parent never forks itself: a fork server does, so what these tests look for cannot be inherited.
"""

import json
import os
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from supervisor import exits
from supervisor.parent.service import MOST_LINKS
from tests.support import proc
from tests.support.database import Database
from tests.support.health import HealthWatch
from tests.support.jobs import enqueue, wait_done
from tests.support.service import Service
from tests.support.sizes import FULL, within
from tests.support.waiting import wait_until

Start = Callable[..., Service]
LISTENER = "pg-supervisor listen"


def listener_pid(db: Database) -> int:
    rows = db.server_sessions(LISTENER)
    assert len(rows) == 1, rows
    return int(rows[0][0])


def fork_server_of(one: Service) -> int:
    """Its pid. Workers are forks of it with the same command line; orphaned ones have the same parent, too."""
    workers = one.worker_pids()
    [pid] = [
        process.pid
        for process in proc.children(one.parent_pid)
        if process.pid not in workers and "forkserver" in proc.command_line(process.pid)
    ]
    return pid


def replaced(one: Service, slot: int, pid: int, sig: signal.Signals, deadline_s: float = 15.0) -> int:
    """Signal the worker of *slot* and return the pid of its successor, once that is ready."""
    readies = len(one.events("worker.ready", slot=slot))
    os.kill(pid, sig)
    return int(one.wait_event("worker.ready", deadline_s, slot=slot, count=readies + 1)["pid"])


@pytest.mark.timeout(600 if FULL else 240)
@pytest.mark.pg("18", "15")
def test_the_listen_session_survives_the_deaths_and_births_of_workers(
    db: Database, service: Start, report: Callable[[str], None]
) -> None:
    """B01: kills and ordinary exits, and jobs that make the collector find what a fork left behind."""
    url = db.conninfo
    tls = db.server.version == "15"  # the only one that is built with it; the other runs plain TCP
    if tls:
        db.server.enable_tls()
        url = db.server.conninfo(db.name, sslmode="require")
    one = service(processes=4, poll_every_s=30, restart_budget=1000, database_url=url)
    wait_until(lambda: len(db.server_sessions(LISTENER)) == 1, 10, "it listens")
    if tls:
        assert db.value(
            "select bool_and(ssl) from pg_stat_ssl join pg_stat_activity using (pid)"
            " where datname = current_database() and application_name like 'pg-supervisor%'"
        )
    before = listener_pid(db)
    since = len(one.log)
    latencies = []
    half = 20 if FULL else 8
    for number in range(2 * half):
        slot = number % 4
        replaced(one, slot, one.workers()[slot], signal.SIGKILL if number < half else signal.SIGTERM)
        sent = time.time()
        [job_id] = enqueue(db, "t.effect")
        db.wait_for("select count(*)::int from effects where job_id = %s", 1, 10, [job_id])
        at = db.value("select extract(epoch from at)::float8 from effects where job_id = %s", [job_id])
        latencies.append(at - sent)
        enqueue(db, "t.allocate", {"seconds": 3 if FULL else 0.3}, count=4)
        db.wait_for("select count(*)::int from supervisor.job", 0, 30)
        assert listener_pid(db) == before, f"round {number}: the LISTEN session is another one"
    assert [event for event in one.log[since:] if event["event"].startswith("listener.")] == []
    codes = Counter(event["code"] for event in one.events("worker.exited"))
    assert codes == {-9: half, 0: half}
    latencies.sort()
    report(f"B01 {'TLS' if tls else 'TCP'}: enqueue to start right after a replacement: "
           f"median {latencies[half] * 1000:.0f} ms, max {latencies[-1] * 1000:.0f} ms")  # fmt: skip
    if FULL:
        assert latencies[half] < 0.25
    assert latencies[-1] < (2.0 if FULL else 10.0), "polls are 30 s apart"
    wait_done(db, 10 * half, 60)
    assert one.stop() == exits.OK


def sockets_of(pid: int) -> set[str]:
    return {what for what in proc.descriptors(pid).values() if what.startswith("socket:")}


def test_no_worker_holds_a_socket_of_another(db: Database, service: Start) -> None:
    """B02: each worker has one end of its own pair, and nothing of its siblings, its parent or the fork server."""
    one = service(processes=6, health_port="auto")
    pids = one.worker_pids()
    assert len(pids) == 6
    held = {pid: sockets_of(pid) for pid in [*pids, one.parent_pid]}
    for pid in held:
        for other in held:
            if pid != other:
                assert not held[pid] & held[other], f"{pid} and {other} share {held[pid] & held[other]}"
    for pid in pids:
        files = proc.descriptors(pid)
        boards = [what for what in files.values() if "supervisor-board" in what]
        assert len(boards) <= 2, f"worker {pid} has the boards of others: {boards}"  # mmap keeps one, faulthandler too
        assert len(files) < 40, files

    pipes = {pid: {what for what in proc.descriptors(pid).values() if what.startswith("pipe:")} for pid in pids}
    everyones = set.intersection(*pipes.values())  # the log, the resource tracker
    for pid in pids:
        for other in pids:
            shared = pipes[pid] & pipes[other] - everyones
            assert pid == other or not shared, f"{pid} and {other} share {shared}"

    began = time.monotonic()
    replaced(one, 0, pids[0], signal.SIGKILL)
    assert time.monotonic() - began < within(2, busy_s=8), "the first-started worker's death was noticed late"


@pytest.mark.timeout(300)
def test_replacing_workers_leaks_no_descriptor(db: Database, service: Start) -> None:
    """B02: after many rounds the parent and the fork server have as many as in the beginning."""
    one = service(processes=2, restart_budget=10_000)
    rounds = 300 if FULL else 80
    fork_server = fork_server_of(one)
    replaced(one, 0, one.workers()[0], signal.SIGKILL)  # what is opened once is open now
    wait_until(lambda: len(one.events("worker.exited")) == 1, 5)
    begin = (len(proc.descriptors(one.parent_pid)), len(proc.descriptors(fork_server)))
    for number in range(rounds):
        slot = number % 2
        replaced(one, slot, one.workers()[slot], signal.SIGKILL if number % 3 else signal.SIGTERM)

    def same() -> bool:
        now = (len(proc.descriptors(one.parent_pid)), len(proc.descriptors(fork_server)))
        # The parent's shared connections come and go; a leak would be one for each of the rounds.
        return abs(now[0] - begin[0]) <= MOST_LINKS and now[1] == begin[1]

    wait_until(same, 10, f"descriptors are {begin} again; parent: {proc.descriptors(one.parent_pid)}")
    zombies = [process for process in proc.everyone() if process.session == one.parent_pid and not process.alive]
    assert zombies == []
    assert one.stop() == exits.OK


class Flood:
    """Notifications, signals and health requests, from threads, until it is over."""

    def __init__(self, db: Database, one: Service) -> None:
        self._over = threading.Event()
        self._db = db
        self._one = one
        self._port = one.health_port
        self.pages: list[bytes] = []
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._notify, self._signal, self._ask)]

    def __enter__(self) -> "Flood":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(10)

    def _notify(self) -> None:
        with self._db.connect() as conn:
            while not self._over.wait(0.002):
                conn.execute("select supervisor.enqueue('t.noop')")

    def _signal(self) -> None:
        while not self._over.wait(0.01):
            os.kill(self._one.parent_pid, signal.SIGHUP)
            os.kill(self._one.parent_pid, signal.SIGCHLD)

    def _ask(self) -> None:
        while not self._over.wait(0.02):
            with socket.create_connection(("127.0.0.1", self._port), 10) as conn:
                conn.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                page = b""
                while some := conn.recv(65536):
                    page += some
                self.pages.append(page)


@pytest.mark.timeout(300)
def test_workers_born_in_a_flood_are_whole(db: Database, service: Start, report: Callable[[str], None]) -> None:
    """B04: respawns while notifications, signals and requests rain. The children run jobs, idle without work,
    answer SIGTERM; no page and no log line is said twice."""
    rounds = 200 if FULL else 60
    one = service(processes=2, restart_budget=10_000, health_port="auto")
    with Flood(db, one) as flood:
        for number in range(rounds):
            slot = number % 2
            replaced(one, slot, one.workers()[slot], signal.SIGKILL)
    db.wait_for("select count(*)::int from supervisor.job", 0, 60)

    for page in flood.pages:
        head, _, body = page.partition(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        assert length is not None
        assert len(body) == int(length[1]), "a page is cut or has more than itself"
        assert page.count(b"HTTP/1.1") == 1
    lines = Counter(json.dumps(event, sort_keys=True) for event in one.log)
    twice = [line for line, count in lines.items() if count > 1]
    assert twice == []
    assert one.noise == []

    # Idle children sleep. Measured from when they last had work, over a window of their own clock; though while
    # there were too many notifications to listen to, they are still asked to look now and then (supervisor/floods.py).
    pids = one.worker_pids()
    wait_until(lambda: all((found := proc.look(pid)) and found.state == "S" for pid in pids), 10)
    window_s = 5.0
    begin = {pid: proc.look(pid) for pid in pids}
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > window_s, window_s + 5, "the window is over")
    shares = []
    for pid in pids:
        first, last = begin[pid], proc.look(pid)
        assert first is not None
        assert last is not None
        shares.append((last.cpu_s - first.cpu_s) / window_s)
    report(f"B04: {rounds} respawns, {len(flood.pages)} pages; CPU of idle workers "
           f"{', '.join(f'{share:.1%}' for share in shares)}")  # fmt: skip
    assert max(shares) < 0.02

    ids = enqueue(db, "t.effect", count=20)
    db.wait_for("select count(*)::int from effects", 20)
    assert set(db.effects()) == set(ids)
    began = time.monotonic()
    replaced(one, 0, one.workers()[0], signal.SIGTERM)
    assert time.monotonic() - began < within(3, busy_s=8), (
        "SIGTERM of an idle child"
    )  # its exit and its successor's birth
    assert one.stop() == exits.OK


def test_a_killed_fork_server_costs_no_worker(db: Database, service: Start) -> None:
    """Workers live on and work; the next restart makes a new fork server; exit codes stay right."""
    one = service(processes=2, restart_budget=1000)
    pids = one.worker_pids()
    first = fork_server_of(one)
    os.kill(first, signal.SIGKILL)
    enqueue(db, "t.effect", count=10)
    wait_done(db, 10)
    assert one.worker_pids() == pids

    replaced(one, 0, pids[0], signal.SIGKILL)
    assert one.wait_event("worker.exited", pid=pids[0])["code"] == -9, "an orphan's exit code"
    replaced(one, 1, pids[1], signal.SIGTERM)
    assert one.wait_event("worker.exited", pid=pids[1])["code"] == 0
    second = fork_server_of(one)
    assert second != first
    [bad] = enqueue(db, "t.segv_read", max_crashes=1)
    assert "SIGSEGV" in one.wait_event("worker.exited", code=-11)["why"]
    db.wait_for("select status from supervisor.jobs where id = %s", "dead", params=[bad])
    enqueue(db, "t.effect", count=10)
    wait_done(db, 20)
    zombies = [process for process in proc.everyone() if process.session == one.parent_pid and not process.alive]
    assert zombies == []
    assert one.stop() == exits.OK


@pytest.mark.timeout(180)
def test_a_stopped_fork_server_does_not_stop_the_parent(db: Database, service: Start) -> None:
    """The health page answers, the other workers work, and the fork server is replaced after its time limit."""
    one = service(processes=2, health_port="auto", restart_budget=1000)
    stopped = fork_server_of(one)
    with HealthWatch(one.health_port) as watch:
        os.kill(stopped, signal.SIGSTOP)
        slot, pid = next(iter(one.workers().items()))
        os.kill(pid, signal.SIGKILL)
        enqueue(db, "t.effect", count=10)
        wait_done(db, 10)
        one.wait_event("fork_server.killed", 30, pid=stopped)
        one.wait_event("worker.ready", 15, slot=slot, count=2)
    assert watch.longest_silence_s < within(2, busy_s=4)
    assert watch.bad == []
    assert fork_server_of(one) != stopped
    assert one.stop() == exits.OK


def test_a_fork_server_that_is_stopped_does_not_outlive_the_service(db: Database, service: Start) -> None:
    one = service(processes=1)
    os.kill(fork_server_of(one), signal.SIGSTOP)
    assert one.stop() == exits.OK  # the fixture fails the test if a process is left


def test_a_sigterm_to_the_whole_group_drains(db: Database, service: Start) -> None:
    """As systemd and shells send it: every process gets it at once, and what runs is still finished."""
    enqueue(db, "t.sleep", {"seconds": 1.0}, count=20)
    enqueue(db, "t.sleep_sync", {"seconds": 1.0}, count=20)
    one = service(processes=2, concurrency=4, prefetch=10)
    db.wait_for("select count(*)::int from effects where note = 'start'", 8)
    os.killpg(one.parent_pid, signal.SIGTERM)
    assert one.wait_exit() == exits.OK
    ran = len(db.effects("start"))
    assert ran < 40
    assert db.statuses() == {"done": ran, "queued": 40 - ran}
    assert db.rows("select id from supervisor.job where attempts <> 0 or crashes <> 0") == []


def test_slow_imports_of_handlers_are_waited_for_and_cut_short_by_a_stop(
    db: Database, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Handlers that import for long (a model is loaded) are no reason to kill the fork server; SIGTERM is."""
    folder = tmp_path_factory.mktemp("slow")
    (folder / "slow_handlers.py").write_text(
        "import os, time\nopen(os.environ['SLOW_MARK'], 'w').close()\ntime.sleep(600)\n"
    )
    mark = folder / "importing"
    one = Service(db, handlers="slow_handlers", processes=2, env={"SLOW_MARK": str(mark)})
    one.env["PYTHONPATH"] += f":{folder}"
    with one:
        wait_until(mark.exists, 15, "the import has begun")
        began = time.monotonic()
        assert one.stop() == exits.OK
        assert time.monotonic() - began < 8.0
