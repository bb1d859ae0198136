"""What adding jobs costs: one by one, 10,000 at once, and by many writers with wake-ups on and off.

single: one connection, a commit each. bulk: one call for 10,000 jobs and its commit; for the service that is
`enqueue_many`. The baselines are the same rows put into a table with the columns and indexes of the service's and no
trigger, by the same driver ("plain": INSERT, and COPY for bulk), and by asyncpg into the table of the bare loop.

writers: pgbench, each client a connection that calls `supervisor.enqueue` and commits, again and again. "on": a
supervisor waits and is notified; its queues are others, so that its workers' work is not in the figures. "off": it runs
with SUPERVISOR_WAKE off. "plain": the same rows inserted into the plain table beside it. The first second of each is
left out: in it, as many new connections as there are writers get to know the tables and functions.
"""

import argparse
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import psycopg

from bench import calls
from bench.drain import NOTE, against, peers
from bench.ground import Ground, in_turns, opened, place, until
from bench.jobs import noop
from bench.peers.crew import tell
from bench.peers.env import Installed, install
from bench.peers.registry import PEERS
from bench.report import Chart, Report, Say, Shown, Table
from bench.service import BenchService
from bench.stats import Summary, readable

HELP: Final = "jobs added a second: singly, in bulk, by 1-64 writers with wake-ups on and off"
ON: Final = "service, wake-ups on"
OFF: Final = "service, wake-ups off"
PLAIN: Final = "plain inserts"
_WARM_S: Final = 1
_SLOW_BULK: Final = {"procrastinate": 1_000, "oban": 5_000}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--singles", type=int, default=500, metavar="N", help="jobs one by one (default: %(default)s)")
    parser.add_argument("--bulk", type=int, default=10_000, metavar="N", help="jobs at once (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds of each (default: %(default)s)")
    parser.add_argument("--writers", default="1,4,16,64", metavar="N,...", help="clients (default: %(default)s)")
    parser.add_argument("--seconds", type=float, metavar="S", help="of each with writers (default: 3, or 10 if --full)")
    against(parser)
    place(parser)


def run(options: argparse.Namespace, say: Say) -> Report:
    """Measure everybody in turns."""
    seconds = options.seconds or (10 if options.full else 3)
    writers = [int(word) for word in options.writers.split(",")]
    producers = {name: install(PEERS[name], say) for name in ("service", "plain")} | peers(options, say)
    with opened(options, say) as ground:

        def alone(name: str, number: int) -> tuple[float, float]:
            found = _alone(ground, producers[name], options.singles, options.bulk, f"enqueue_{number}")
            say(f"round {number}: {name} single {readable(found[0])}/s, bulk {readable(found[1])}/s")
            return found

        rounds = in_turns(list(producers), options.rounds, alone)

        def together(name: str, number: int) -> dict[int, float]:
            found = {clients: _together(ground, name, clients, seconds, f"writers_{number}") for clients in writers}
            say(f"round {number}: {name} " + ", ".join(f"{n}: {readable(rate)}/s" for n, rate in found.items()))
            return found

        crowd = in_turns([ON, OFF, PLAIN], options.rounds, together)
        with ground.database("calls") as url:
            made_of = calls.measure(url, min(1_000, options.singles * 2))
        return _report(ground, rounds, crowd, made_of, producers, options, say)


def _alone(ground: Ground, peer: Installed, singles: int, bulk: int, database: str) -> tuple[float, float]:
    bulk = min(bulk, _SLOW_BULK.get(peer.peer.name, bulk))
    with ground.database(database, schema=False) as url:
        tell(peer, "setup", url)
        single = singles / tell(peer, "single", url, singles)["seconds"]
        tell(peer, "fill", url, bulk)
        return single, bulk / tell(peer, "fill", url, bulk)["seconds"]


def _together(ground: Ground, name: str, clients: int, seconds: float, database: str) -> float:
    with (
        ground.database(database) as url,
        psycopg.connect(url, autocommit=True) as watch,
        BenchService(url, processes=1, queues="elsewhere", wake=name != OFF) as service,
    ):
        watch.execute("create table plain_job (like supervisor.job including all)")
        if name != OFF:
            until(watch, service, "select exists (select from supervisor.waiting)", 30)
        payload = noop.encode(n=0, note=NOTE)
        script = (
            f"insert into plain_job (kind, payload) values ('{noop.kind}', '{payload}');"
            if name == PLAIN
            else f"select supervisor.enqueue('{noop.kind}', '{payload}');"
        )
        return _pgbench(ground, database, script, clients, seconds)


def _pgbench(ground: Ground, database: str, script: str, clients: int, seconds: float) -> float:
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        lasting = max(1, round(seconds)) + _WARM_S
        words = f"-n -M prepared -P 1 -c {clients} -j {min(clients, 2)} -T {lasting} -h 127.0.0.1"
        done = subprocess.run(
            [str(Path(ground.server.programs) / "pgbench"), *words.split(), "-p", str(ground.server.port),
             "-U", "postgres", "-f", file.name, database],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    said = done.stdout + done.stderr
    begun = re.search(r"^progress: ([0-9.]+) s, ([0-9.]+) tps", said, re.MULTILINE)
    count = re.search(r"^number of transactions actually processed: ([0-9]+)", said, re.MULTILINE)
    tps = re.search(r"^tps = ([0-9.]+) \(without initial connection time\)", said, re.MULTILINE)
    if done.returncode != 0 or begun is None or count is None or tps is None:
        raise RuntimeError(f"pgbench failed: {said.strip()[-800:]}")
    warm_s, warm_tps = float(begun[1]), float(begun[2])
    return (int(count[1]) - warm_s * warm_tps) / (int(count[1]) / float(tps[1]) - warm_s)


def _report(
    ground: Ground,
    rounds: dict[str, list[tuple[float, float]]],
    crowd: dict[str, list[dict[int, float]]],
    made_of: dict[str, calls.Cost],
    producers: dict[str, Installed],
    options: argparse.Namespace,
    say: Say,
) -> Report:
    single = {name: Summary.of([one[0] for one in found]) for name, found in rounds.items()}
    bulk = {name: Summary.of([one[1] for one in found]) for name, found in rounds.items()}
    writers = list(crowd[ON][0])
    many = {
        name: {clients: Summary.of([one[clients] for one in found]) for clients in writers}
        for name, found in crowd.items()
    }
    shares = {
        clients: Summary.of([on[clients] / plain[clients] for on, plain in zip(crowd[ON], crowd[PLAIN], strict=True)])
        for clients in writers
    }
    kept = {
        clients: Summary.of([on[clients] / off[clients] for on, off in zip(crowd[ON], crowd[OFF], strict=True)])
        for clients in writers
    }
    alone = Table(
        "enqueue: one connection",
        ("", "single/s", "spread", f"bulk {options.bulk:,}/s", "spread", "bulk / plain COPY"),
        [
            (
                f"{name} {one.version}" if one.peer.kind != "here" else name,
                readable(single[name].median), f"{readable(single[name].low)}-{readable(single[name].high)}",
                readable(bulk[name].median), f"{readable(bulk[name].low)}-{readable(bulk[name].high)}",
                f"{bulk[name].median / bulk['plain'].median:.2f} x",
            )
            for name, one in producers.items()
        ],
    )  # fmt: skip
    together = Table(
        "enqueue: writers (commits/s)",
        ("writers", *many, "on / plain", "on / off"),
        [
            (
                str(clients),
                *(readable(found[clients].median) for found in many.values()),
                f"{shares[clients].median:.2f} x ({shares[clients].low:.2f}-{shares[clients].high:.2f})",
                f"{kept[clients].median:.2f} x",
            )
            for clients in writers
        ],
    )
    profile = Table(
        "enqueue: what one costs",
        ("one commit, alone on the machine", "us server", "us client"),
        [(name, f"{cost.server:.1f}", f"{cost.client:.1f}") for name, cost in made_of.items()],
    )
    say(alone.markdown())
    say(together.markdown())
    say(profile.markdown())
    most = max(writers)
    copied = bulk["service"].median / bulk["plain"].median
    line = (
        f"enqueue: {readable(single['service'].median)} jobs/s one by one "
        f"({single['service'].median / single['plain'].median:.2f} x plain inserts), "
        f"{readable(bulk['service'].median)} jobs/s {options.bulk:,} at once ({copied:.2f} x COPY), "
        f"{readable(many[ON][most].median)} commits/s by {most} writers with wake-ups "
        f"({shares[most].median:.2f} x plain inserts; {ground.where()})"
    )
    shown = [
        Shown(
            "enqueue-writers", f"enqueue single, wake-ups on, {most} writers",
            ">= 0.8 x plain inserts without a trigger",
            f"{shares[most].median:.2f} x ({shares[most].low:.2f}-{shares[most].high:.2f})", shares[most].median >= 0.8,
        ),
        Shown("enqueue-copy", f"enqueue bulk {options.bulk:,}", ">= 0.7 x COPY of the same rows",
              f"{copied:.2f} x", copied >= 0.7),
    ]  # fmt: skip
    others = [name for name, one in producers.items() if one.peer.kind != "here"]
    for word, figures, factor in (("single", single, 1.3), ("bulk", bulk, 2.0)):
        if others:
            best = max(others, key=lambda name: figures[name].median)
            ratio = figures["service"].median / figures[best].median
            shown.append(
                Shown(f"enqueue-{word}", f"enqueue {word}", f">= {factor:g} x the best peer ({best})",
                      f"{ratio:.2f} x", ratio >= factor)
            )  # fmt: skip
    chart = Chart(
        "enqueue: commits/s by writers", "commits/s", "lines",
        {name: [found[clients].median for clients in writers] for name, found in many.items()},
        x=[str(clients) for clients in writers], x_title="writers",
    )  # fmt: skip
    return Report(
        line,
        {
            **ground.facts(),
            "settings": {"singles": options.singles, "bulk": options.bulk, "rounds": options.rounds},
            "single_per_s": {name: one.as_dict() for name, one in single.items()},
            "bulk_per_s": {name: one.as_dict() for name, one in bulk.items()},
            "writers_per_s": {
                name: {str(clients): one.as_dict() for clients, one in found.items()} for name, found in many.items()
            },
            "on_to_plain": {str(clients): one.as_dict() for clients, one in shares.items()},
            "cost_us": {name: cost._asdict() for name, cost in made_of.items()},
            "versions": {name: one.version for name, one in producers.items()},
        },
        [alone, together, profile],
        chart,
        shown,
    )
