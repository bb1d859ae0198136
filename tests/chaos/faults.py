"""What is done to the world. Each fault says what it did; one that lasts ends itself."""

import contextlib
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psycopg

from tests.chaos.load import ask
from tests.chaos.world import Node, World
from tests.support.faketime import FAKETIME

Fault = Callable[[World, random.Random], None]
FAULTS: Final[dict[str, tuple[int, Fault]]] = {}
"""Name -> (weight, what it does)."""

_SPARE_BYTES: Final = 4 << 20
_HELD_JOBS: Final = 24


def fault(weight: int) -> Callable[[Fault], Fault]:
    def add(does: Fault) -> Fault:
        FAULTS[does.__name__] = (weight, does)
        return does

    return add


def missing(world: World) -> dict[str, str]:
    """Faults that this machine cannot do, and why."""
    found = {}
    if world.disk is None:
        found["disk_full"] = f"no file system for the database can be mounted ({world.no_disk})"
    if not FAKETIME.exists():
        found["skew_clock"] = f"{FAKETIME} is missing: apt install faketime"
    return found


def pick(rng: random.Random) -> tuple[str, Fault]:
    """A fault, by weight."""
    names = sorted(FAULTS)
    name = rng.choices(names, [FAULTS[name][0] for name in names])[0]
    return name, FAULTS[name][1]


def _node(world: World, rng: random.Random) -> Node:
    return rng.choice(world.nodes)


def _lasting(pid_or_node: str, seconds: float) -> dict[str, object]:
    return {"what": pid_or_node, "for_s": round(seconds, 2)}


def _send(pid: int, sig: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sig)


@fault(12)
def kill_worker(world: World, rng: random.Random) -> None:
    pids = [pid for node in world.nodes for pid in world.workers(node)]
    if pids:
        pid = rng.choice(pids)
        _send(pid, signal.SIGKILL)
        world.note("kill_worker", pid=pid)


@fault(3)
def kill_parent(world: World, rng: random.Random) -> None:
    node = _node(world, rng)
    if node.service.alive:
        _send(node.service.parent_pid, signal.SIGKILL)
        world.note("kill_parent", node=node.name)


@fault(2)
def kill_node(world: World, rng: random.Random) -> None:
    """Everything of one supervisor at once: a lost machine."""
    node = _node(world, rng)
    if node.service.alive:
        world.signal_tree(node, signal.SIGKILL)
        world.note("kill_node", node=node.name)


@fault(3)
def kill_fork_server(world: World, rng: random.Random) -> None:
    node = _node(world, rng)
    pid = world.fork_server(node)
    if pid is not None:
        _send(pid, signal.SIGKILL)
        world.note("kill_fork_server", node=node.name, pid=pid)


@fault(3)
def stop_fork_server(world: World, rng: random.Random) -> None:
    """It forks nothing for a while, and just then a worker dies."""
    node, seconds = _node(world, rng), rng.uniform(0.2, 2 * world.lease_s)
    pid = world.fork_server(node)
    if pid is None:
        return
    world.note("stop_fork_server", node=node.name, pid=pid, for_s=round(seconds, 2))
    _send(pid, signal.SIGSTOP)
    for worker in world.workers(node)[:1]:
        _send(worker, signal.SIGKILL)
    time.sleep(seconds)
    _send(pid, signal.SIGCONT)


@fault(4)
def squeeze_worker(world: World, rng: random.Random) -> None:
    """Memory pressure: a worker gets hardly any more address space, and allocations fail wherever they are made."""
    pids = [pid for node in world.nodes for pid in world.workers(node)]
    if not pids:
        return
    pid, seconds = rng.choice(pids), rng.uniform(0.5, 3.0)
    spare = rng.choice([0, _SPARE_BYTES])
    with contextlib.suppress(OSError):  # it has just died
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + spare
        before = resource.prlimit(pid, resource.RLIMIT_AS)
        resource.prlimit(pid, resource.RLIMIT_AS, (limit, before[1]))
        world.note("squeeze_worker", pid=pid, spare_mb=spare >> 20, for_s=round(seconds, 2))
        time.sleep(seconds)
        resource.prlimit(pid, resource.RLIMIT_AS, before)


@fault(3)
def skew_clock(world: World, rng: random.Random) -> None:
    """One machine's wall clock is wrong, or runs at another speed, from its next start on; later it jumps."""
    node = _node(world, rng)
    wrong = rng.choice(["-90s", "+90s", "-3600s", "+3600s", "+0 x1.2", "+0 x0.8"])
    if node.clock is None and node.service.alive:
        node.clock = world.clock_file(node)
        _send(node.service.parent_pid, signal.SIGTERM)
    if node.clock is not None:
        node.clock.write_text(wrong)
        world.note("skew_clock", node=node.name, clock=wrong)


@fault(3)
def disk_full(world: World, rng: random.Random) -> None:
    """No table of the database can grow."""
    seconds = rng.uniform(0.5, 3.0)
    if world.disk is None:
        return
    world.note("disk_full", for_s=round(seconds, 2))
    world.disk.fill()
    time.sleep(seconds)
    world.disk.free()


@fault(2)
def exhaust_pool(world: World, rng: random.Random) -> None:
    """More jobs that sit in job.transaction() than all workers' pools have connections."""
    with contextlib.suppress(psycopg.Error), psycopg.connect(world.db.conninfo, connect_timeout=2) as conn:
        ask(conn, "c.hold", [{"seconds": rng.uniform(0.2, 0.8)} for _ in range(_HELD_JOBS)], queue=rng.choice("abc"))
        world.note("exhaust_pool", jobs=_HELD_JOBS)


@fault(3)
def terminate_parent(world: World, rng: random.Random) -> None:
    """A deploy: SIGTERM, and a new one after it."""
    node = _node(world, rng)
    if node.service.alive:
        _send(node.service.parent_pid, signal.SIGTERM)
        world.note("terminate_parent", node=node.name)


@fault(2)
def terminate_worker(world: World, rng: random.Random) -> None:
    pids = [pid for node in world.nodes for pid in world.workers(node)]
    if pids:
        pid = rng.choice(pids)
        _send(pid, signal.SIGTERM)
        world.note("terminate_worker", pid=pid)


@fault(5)
def stop_worker(world: World, rng: random.Random) -> None:
    pids = [pid for node in world.nodes for pid in world.workers(node)]
    if pids:
        pid, seconds = rng.choice(pids), rng.uniform(0.2, 2 * world.lease_s)
        world.note("stop_worker", pid=pid, for_s=round(seconds, 2))
        _send(pid, signal.SIGSTOP)
        time.sleep(seconds)
        _send(pid, signal.SIGCONT)


@fault(3)
def stop_parent(world: World, rng: random.Random) -> None:
    node, seconds = _node(world, rng), rng.uniform(0.2, 2 * world.lease_s)
    if node.service.alive:
        world.note("stop_parent", node=node.name, for_s=round(seconds, 2))
        _send(node.service.parent_pid, signal.SIGSTOP)
        time.sleep(seconds)
        _send(node.service.parent_pid, signal.SIGCONT)


@fault(3)
def stop_tree(world: World, rng: random.Random) -> None:
    """A machine that sleeps, for longer than its leases."""
    node, seconds = _node(world, rng), rng.uniform(0.5, 2 * world.lease_s)
    world.note("stop_tree", node=node.name, for_s=round(seconds, 2))
    world.signal_tree(node, signal.SIGSTOP)
    time.sleep(seconds)
    world.signal_tree(node, signal.SIGCONT)


@fault(8)
def terminate_session(world: World, rng: random.Random) -> None:
    """pg_terminate_backend on some of the service's connections."""
    share = rng.choice([0.2, 1.0])
    with contextlib.suppress(psycopg.Error):
        ended = world.admin(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
            " and application_name like 'pg-supervisor%%' and random() < %s",
            (share,),
        )
        world.note("terminate_session", count=len(ended))


@fault(3)
def restart_immediate(world: World, rng: random.Random) -> None:
    """A crash of the server."""
    world.note("restart_immediate")
    world.server.stop("immediate")
    time.sleep(rng.uniform(0, 1.5))
    world.server.start()


@fault(2)
def restart_fast(world: World, rng: random.Random) -> None:
    world.note("restart_fast")
    world.server.stop("fast")
    time.sleep(rng.uniform(0, 1.5))
    world.server.start()


@fault(5)
def cut(world: World, rng: random.Random) -> None:
    node = _node(world, rng)
    world.note("cut", node=node.name, count=node.proxy.cut())


@fault(3)
def strand(world: World, rng: random.Random) -> None:
    """Half-open: the connections there are pass nothing any more."""
    node = _node(world, rng)
    world.note("strand", node=node.name, count=node.proxy.strand())


@fault(4)
def freeze(world: World, rng: random.Random) -> None:
    node, seconds = _node(world, rng), rng.uniform(0.3, 2 * world.lease_s)
    world.note("freeze", node=node.name, for_s=round(seconds, 2))
    node.proxy.freeze()
    time.sleep(seconds)
    node.proxy.thaw()


@fault(3)
def slow(world: World, rng: random.Random) -> None:
    node, seconds = _node(world, rng), rng.uniform(0.5, 2.0)
    world.note("slow", node=node.name, for_s=round(seconds, 2))
    node.proxy.delay_s = rng.uniform(0.02, 0.2)
    time.sleep(seconds)
    node.proxy.delay_s = 0.0


@fault(3)
def refuse(world: World, rng: random.Random) -> None:
    """Half of the new connections are refused, and the old ones are gone."""
    node, seconds = _node(world, rng), rng.uniform(0.5, 2.0)
    world.note("refuse", node=node.name, for_s=round(seconds, 2))
    node.proxy.refuse = lambda number: number % 2 == 0
    node.proxy.cut()
    time.sleep(seconds)
    node.proxy.refuse = lambda _: False


@fault(6)
def lose_answers(world: World, rng: random.Random) -> None:
    """Statements are carried out and their answers do not come back."""
    node, seconds = _node(world, rng), rng.uniform(0.3, 1.5)
    chance = rng.choice([0.05, 0.3])
    dice = random.Random(rng.random())
    node.proxy.lose(lambda sql: "any" if "supervisor" in sql and dice.random() < chance else None)
    time.sleep(seconds)
    node.proxy.lose(None)
    world.note("lose_answers", node=node.name, for_s=round(seconds, 2), lost=sum(node.proxy.lost.values()))


@fault(3)
def lock_table(world: World, rng: random.Random) -> None:
    """Somebody's migration holds the hot table."""
    seconds = rng.uniform(0.2, 1.5)
    world.note("lock_table", for_s=round(seconds, 2))
    with contextlib.suppress(psycopg.Error), psycopg.connect(world.server.superuser_conninfo(world.db.name)) as conn:
        conn.execute("set lock_timeout = '2s'")
        conn.execute("lock table supervisor.job in access exclusive mode")
        time.sleep(seconds)
        conn.rollback()


@fault(2)
def old_snapshot(world: World, rng: random.Random) -> None:
    """A report holds a snapshot and reads the queue in it."""
    seconds = rng.uniform(1.0, 5.0)
    world.note("old_snapshot", for_s=round(seconds, 2))

    def hold() -> None:
        with (
            contextlib.suppress(psycopg.Error),
            psycopg.connect(world.server.superuser_conninfo(world.db.name)) as conn,
        ):
            conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            conn.execute("select count(*) from supervisor.job")
            time.sleep(seconds)
            conn.rollback()

    threading.Thread(target=hold, daemon=True).start()


@fault(2)
def role_limits(world: World, rng: random.Random) -> None:
    """The role's defaults are hostile for a while: serializable, short time limits."""
    seconds = rng.uniform(1.0, 3.0)
    world.note("role_limits", for_s=round(seconds, 2))
    with contextlib.suppress(psycopg.Error):
        for setting in (
            "default_transaction_isolation = 'serializable'",
            "idle_in_transaction_session_timeout = '300ms'",
            "statement_timeout = '1s'",
        ):
            world.admin(f"alter role supervisor_test set {setting}")
    for node in world.nodes:
        node.proxy.cut()
    time.sleep(seconds)
    with contextlib.suppress(psycopg.Error):
        world.admin("alter role supervisor_test reset all")
    for node in world.nodes:
        node.proxy.cut()


@fault(2)
def no_connections(world: World, rng: random.Random) -> None:
    """The database takes no new connections, and the old ones are gone."""
    seconds = rng.uniform(0.5, 2.0)
    world.note("no_connections", for_s=round(seconds, 2))
    with contextlib.suppress(psycopg.Error):
        world.server.execute(f"alter database {world.db.name} connection limit 3")
    for node in world.nodes:
        node.proxy.cut()
    time.sleep(seconds)
    with contextlib.suppress(psycopg.Error):
        world.server.execute(f"alter database {world.db.name} connection limit -1")
