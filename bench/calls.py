"""What adding one job costs: processor time of the server and of the client, statement by statement.

One connection that commits each, with nothing else on the machine, in turns:

    bare insert     into a table with the columns and indexes of the service's, and no check
    insert          the same with its checks: what `bench enqueue` compares with
    enqueue         the function, while no supervisor waits to be told
    enqueue, told   the same while one waits: a notification besides
    handler         a handler's own `enqueue`: arguments checked, written as JSON, then the function
"""

import statistics
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import psycopg

from bench import machine
from bench.drain import NOTE
from bench.jobs import noop

_COUNT: Final = 1_000
_WARM: Final = 50
_ROUNDS: Final = 5


class Cost(NamedTuple):
    """Microseconds of processor time per commit."""

    server: float
    client: float


def measure(url: str, count: int = _COUNT) -> dict[str, Cost]:
    """The cost of each; *url*: a migrated database that nothing else uses."""
    values = (noop.kind, noop.encode(n=0, note=NOTE))
    with psycopg.connect(url, autocommit=True) as conn, psycopg.connect(url, autocommit=True) as other:
        conn.execute("create table plain_job (like supervisor.job including all)")
        conn.execute("create table bare_job (like supervisor.job including all excluding constraints)")

        def send(statement: str) -> Callable[[], object]:
            return lambda: conn.execute(statement.encode(), values, prepare=True)

        ways = {
            "bare insert": send("insert into bare_job (kind, payload) values (%s, %s)"),
            "insert": send("insert into plain_job (kind, payload) values (%s, %s)"),
            "enqueue": send("select id, created from supervisor.enqueue(%s, %s)"),
            "enqueue, told": send("select id, created from supervisor.enqueue(%s, %s)"),
            "handler": lambda: noop.enqueue(conn, n=0, note=NOTE),
        }
        found: dict[str, list[Cost]] = {name: [] for name in ways}
        for number in range(-1, _ROUNDS):
            for name, way in ways.items():
                if name == "enqueue, told":
                    other.execute("insert into supervisor.waiting (parent) values (1)")
                cost = _cost(conn, way, count if number >= 0 else _WARM)
                other.execute("delete from supervisor.waiting")
                if number >= 0:
                    found[name].append(cost)
    return {
        name: Cost(statistics.median(one.server for one in costs), statistics.median(one.client for one in costs))
        for name, costs in found.items()
    }


def _cost(conn: psycopg.Connection[tuple[object, ...]], way: Callable[[], object], count: int) -> Cost:
    pid = conn.info.backend_pid
    at = (machine.running_ns(pid), time.process_time_ns())
    for _ in range(count):
        way()
    now = (machine.running_ns(pid), time.process_time_ns())
    return Cost((now[0] - at[0]) / count / 1e3, (now[1] - at[1]) / count / 1e3)
