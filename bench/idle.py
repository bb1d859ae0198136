"""What a node costs that has nothing to do: processor time, queries, connections.

The node has run some jobs and has come to rest. Its queries are counted in the server's log, its processor time is that
of all its processes; the baseline is the same server without a node, for the same time.
"""

import argparse
import time
from typing import Final

import psycopg

from bench import machine
from bench.emptying import add
from bench.ground import opened, place, until
from bench.report import Report, Say, Shown, Table
from bench.service import BenchService

HELP: Final = "processor time, queries and connections of an idle node"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--seconds", type=float, metavar="S", help="looked at (default: 20, or 60 if --full)")
    parser.add_argument("--settle", type=float, default=10, metavar="S", help="to come to rest (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=4, metavar="N", help="workers (default: %(default)s)")
    place(parser)


def run(options: argparse.Namespace, say: Say) -> Report:
    """Look at the server alone, then at a node on it."""
    seconds = options.seconds or (60 if options.full else 20)
    with opened(options, say) as ground, ground.database("idle") as url:
        before = ground.server.cpu_s()
        time.sleep(seconds)
        alone = (ground.server.cpu_s() - before) / seconds
        add(url, 2_000)
        with (
            psycopg.connect(url, autocommit=True) as watch,
            BenchService(url, processes=options.processes) as service,
        ):
            until(watch, service, "select not exists (select from supervisor.job)", 60)
            time.sleep(options.settle)
            pids = {"parent": [service.pid], "others": _family(service.pid)}
            ground.server.execute("alter system set log_min_duration_statement = 0")
            ground.server.execute("alter system set log_line_prefix = '%d|%b|'")
            ground.server.execute("select pg_reload_conf()")
            time.sleep(1)
            first = ground.server.log().count(b"\n")
            used = {who: sum(map(machine.cpu_s, which)) for who, which in pids.items()}
            before, began = ground.server.cpu_s(), time.monotonic()
            time.sleep(seconds)
            took = time.monotonic() - began
            cpu = {who: (sum(map(machine.cpu_s, which)) - used[who]) / took for who, which in pids.items()}
            server = (ground.server.cpu_s() - before) / took
            lines = ground.server.log().split(b"\n")[first:]
            names = watch.execute(
                "select application_name, count(*)::int from pg_stat_activity where datname = current_database()"
                " and backend_type = 'client backend' and pid <> pg_backend_pid() group by 1 order by 1"
            ).fetchall()
            connections = sum(count for _, count in names)
            service.check()
    # One query of a prepared statement is a parse at most once, a bind and an execution: the last is counted.
    ours = [line for line in lines if line.startswith(b"idle|client backend|")]
    queries = [line for line in ours if b" statement: " in line or b" execute " in line]
    rate = len(queries) / took
    node = cpu["parent"] + cpu["others"]
    table = Table(
        "idle",
        ("", "figure"),
        [
            ("queries/s", f"{rate:.2f}"),
            ("processor: the node", f"{node * 100:.2f}% of a core"),
            ("processor: its parent", f"{cpu['parent'] * 100:.2f}%"),
            ("processor: the server", f"{server * 100:.2f}% (alone {alone * 100:.2f}%)"),
            ("connections", f"{connections} with {options.processes} workers"),
            *((f"connections: {name.removeprefix('pg-supervisor ')}", str(count)) for name, count in names),
        ],
    )
    say(table.markdown())
    line = (
        f"idle: {rate:.2f} queries/s, {node * 100:.2f}% of a core, {connections} connections with "
        f"{options.processes} workers ({ground.where()})"
    )
    most = options.processes + 2
    return Report(
        line,
        {
            **ground.facts(), "seconds": took, "queries_per_s": rate, "cpu_share": cpu, "server_share": server,
            "server_share_alone": alone, "connections": connections, "processes": options.processes,
        },
        [table],
        None,
        [
            Shown("idle-queries", "idle node: queries", "<= 1 a second", f"{rate:.2f} a second", rate <= 1),
            Shown("idle-cpu", "idle node: processor", "< 1% of a core", f"{node * 100:.2f}%", node < 0.01),
            Shown("idle-connections", "idle node: connections", f"<= workers + 2 = {most}", str(connections),
                  connections <= most),
        ],
    )  # fmt: skip


def _family(pid: int) -> list[int]:
    """All descendants of a process."""
    found = machine.children(pid)
    return found + [grandchild for child in found for grandchild in _family(child)]
