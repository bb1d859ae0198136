"""What the benches stand on: a server, databases on it, facts to print, and turns.

    with opened(options, say) as ground:
        with ground.database("service_1") as url: ...

Always true: what is compared is measured in turns, in an order that is reversed each round, since a machine drifts.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from bench import machine
from bench.report import Say
from bench.server import BenchServer
from bench.service import BenchService
from supervisor.db.migrate import migrate

T = TypeVar("T")
Conn = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Ground:
    """A running server, and what was found about it and the machine."""

    server: BenchServer
    machine: dict[str, Any]
    postgresql: dict[str, str]

    @contextmanager
    def database(self, name: str, *, schema: bool = True) -> Iterator[str]:
        """A database inside the block, migrated if *schema*; its URI."""
        url = self.server.create(name)
        try:
            if schema:
                migrate(url)
            yield url
        finally:
            self.server.drop(name)

    def facts(self) -> dict[str, Any]:
        """For the figures."""
        return {"machine": self.machine, "postgresql": self.postgresql}

    def where(self) -> str:
        """For a line of figures."""
        return (
            f"{self.machine['cores']} cores shared with PostgreSQL {self.postgresql['server_version']}, "
            f"fsync {self.postgresql['fsync']}"
        )


def place(parser: argparse.ArgumentParser) -> None:
    """The options that every bench with a server has."""
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where the server's files go (default: temporary)")
    parser.add_argument("--full", action="store_true", help="at the sizes that are promised; longer, and more disk")


@contextmanager
def opened(options: argparse.Namespace, say: Say) -> Iterator[Ground]:
    """A server of the bench's own; the machine and its settings are told."""
    with BenchServer(options.dir) as server:
        ground = Ground(server, machine.facts(server.home), server.settings())
        say(machine.written(ground.machine))
        if ground.machine["load_1min"] > 0.25 * ground.machine["cores"]:
            say("others are at work on this machine: the figures will be worse, and the ratios uncertain")
        say("PostgreSQL " + ", ".join(f"{key} {value}" for key, value in ground.postgresql.items()))
        yield ground


def in_turns(names: Sequence[str], rounds: int, measure: Callable[[str, int], T]) -> dict[str, list[T]]:
    """Measure each of *names* once a round, in an order that is reversed each time."""
    found: dict[str, list[T]] = {name: [] for name in names}
    for number in range(1, rounds + 1):
        for name in names if number % 2 else reversed(names):
            found[name].append(measure(name, number))
    return found


def row(conn: Conn, statement: str, parameters: Sequence[object] | None = None) -> Any:
    """The one row of an answer."""
    found = conn.execute(statement.encode(), parameters).fetchone()
    assert found is not None
    return found


def until(conn: Conn, service: BenchService | None, question: str, deadline_s: float, every_s: float = 0.05) -> None:
    """Ask until the answer is true.

    Raises:
        RuntimeError: the service has exited, or the time is over.
    """
    deadline = time.monotonic() + deadline_s
    while not row(conn, question)[0]:
        if service is not None:
            service.check()
        if time.monotonic() > deadline:
            raise RuntimeError(f"still not so after {deadline_s:g} s: {question}: {service.tail() if service else ''}")
        time.sleep(every_s)
