"""What the faults act on: a server, two supervisors on it, each behind a proxy of its own."""

import contextlib
import os
import random
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos import keys, load
from tests.chaos.disk import Disk
from tests.support import faketime, proc
from tests.support.database import Database
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.service import Service


@dataclass
class Node:
    """One supervisor, restarted when it is gone."""

    name: str
    service: Service
    proxy: Proxy
    settings: dict[str, Any]
    clock: Path | None = None
    """Where its wall clock's error is read from, at its next start; None for a true clock."""
    past: list[Service] = field(default_factory=list)


class World:
    """Server, nodes and the record of what was done to them."""

    def __init__(self, server: Server, *, nodes: int, processes: int, concurrency: int, lease_s: float) -> None:
        self.server = server
        self.lease_s = lease_s
        self.db = Database.create(server)
        self.disk: Disk | None = None
        self.no_disk = ""
        try:
            self.disk = Disk(server)
        except OSError as error:
            self.no_disk = str(error)
        else:
            self.disk.hold(self.db)
        self.db.execute(load.SCHEMA)
        self.db.execute(keys.SCHEMA)
        self.nodes: list[Node] = []
        self.record: list[dict[str, Any]] = []
        self.began = time.monotonic()
        for number in range(nodes):
            proxy = Proxy(self.db.conninfo).start()
            settings = {
                "processes": processes,
                "concurrency": concurrency,
                "prefetch": concurrency,
                "lease_s": lease_s,
                "reap_every_s": 0.5,
                "retry_base_s": 0.05,
                "retry_cap_s": 1.0,
                "drain_timeout_s": 3.0,
                "statement_timeout_s": 2.0,
                "connect_timeout_s": 2.0,
                "poll_every_s": 2.0,
                "pool_size": 2,
                "restart_budget": 1000,
                "name": f"node{number}",
                "run_dir": f"/tmp/chaos-{os.getpid()}-{number}",
                "database_url": proxy.conninfo,
            }
            self.nodes.append(Node(f"node{number}", self._service(settings), proxy, settings))
        for node in self.nodes:
            node.service.start()
        for node in self.nodes:
            node.service.wait_ready(60)

    def _service(self, settings: dict[str, Any], clock: Path | None = None) -> Service:
        env = faketime.environment(clock) if clock is not None else None
        return Service(self.db, handlers="tests.chaos.handlers", env=env, **settings)

    def clock_file(self, node: Node) -> Path:
        """A file for the error of *node*'s clock."""
        fd, name = tempfile.mkstemp(prefix=f"chaos-clock-{node.name}-")
        os.close(fd)
        return Path(name)

    def note(self, fault: str, **facts: Any) -> None:
        """Record a fault with the seconds since the start."""
        self.record.append({"at_s": round(time.monotonic() - self.began, 2), "fault": fault, **facts})

    # -- processes

    def workers(self, node: Node) -> list[int]:
        """The living workers' pids of *node*: the fork server's children."""
        return [p.pid for p in node.service.processes() if self._kind(p) == "worker"]

    def fork_server(self, node: Node) -> int | None:
        return next((p.pid for p in node.service.processes() if self._kind(p) == "forkserver"), None)

    def _kind(self, process: proc.Process) -> str:
        line = proc.command_line(process.pid)
        if "forkserver" not in line:
            return "other"
        parent = proc.look(process.pid)
        above = proc.command_line(parent.parent) if parent is not None else ""
        return (
            "worker"
            if "forkserver" in above or (parent is not None and parent.parent in (1, os.getpid()))
            else "forkserver"
        )

    def revive(self, rng: random.Random) -> None:
        """Start a supervisor in place of one that is gone."""
        del rng
        for node in self.nodes:
            if not node.service.alive:
                node.past.append(node.service)
                node.service = self._service(node.settings, node.clock)
                node.service.start()

    def signal_tree(self, node: Node, sig: signal.Signals) -> None:
        for process in node.service.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, sig)

    # -- the database

    def admin(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """Run a statement as superuser in the chaos database."""
        with psycopg.connect(self.server.superuser_conninfo(self.db.name), autocommit=True) as conn:
            done = conn.execute(sql.encode(), parameters)
            return done.fetchall() if done.description else []

    def calm(self) -> None:
        """End every lasting fault."""
        if self.disk is not None:
            self.disk.free()
        self.server.start()
        self.admin("alter role supervisor_test reset all")
        self.server.execute(f"alter database {self.db.name} connection limit -1")
        for node in self.nodes:
            node.proxy.thaw()
            node.proxy.end_stranded()  # else handlers' own statements wait for ever, as they were written to
            node.proxy.lose(None)
            node.proxy.delay_s = 0.0
            node.proxy.refuse = lambda _: False
            self.signal_tree(node, signal.SIGCONT)

    def abandon(self) -> None:
        """End whatever still runs; without effect after `close`."""
        for node in self.nodes:
            for service in (*node.past, node.service):
                service._stopped = False
                service.close()

    def close(self) -> list[Service]:
        """Stop the supervisors; every service there was, for its log."""
        services = []
        for node in self.nodes:
            if node.service.alive:
                node.service.stop(signal.SIGTERM, 60)
            services += [*node.past, node.service]
        for service in services:
            service._stopped = False  # processes of killed parents may still be leaving
            service.close()
        for node in self.nodes:
            node.proxy.close()
            if node.clock is not None:
                node.clock.unlink(missing_ok=True)
        return services
