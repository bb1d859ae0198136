"""How fast the relay publishes, against a bare publisher to the same broker without a database.

In turns, on the same servers: a relay empties an outbox that is full; and a loop of the broker's own client sends as
many events of the same size, with as many on their way, each confirmed. What the relay does besides (reading the
outbox, order per key, CloudEvents headers, a delete per confirmed event) is what the ratio shows.

Each runs in a process of its own. The relay's rate is taken from 10% to 90% of the events, as the table shows them.
"""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import psycopg

from bench import machine
from bench.report import Report, Say
from bench.server import BenchServer
from bench.stats import readable
from supervisor.db.migrate import migrate
from tests.support.brokers import Nats, Rabbit

HELP: Final = "events a second by the relay, against a bare publisher to the same broker"
_SERVERS: Final[dict[str, type[Nats] | type[Rabbit]]] = {"nats": Nats, "rabbitmq": Rabbit}
_PROGRAMS: Final = {"nats": "nats-server", "rabbitmq": "rabbitmq-server"}
_TOPIC: Final = "bench"
_DEADLINE_S: Final = 300.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--broker", choices=sorted(_SERVERS), action="append", help="which (default: each)")
    parser.add_argument("--events", type=int, default=20_000, metavar="N", help="per run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="pairs of runs (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=500, metavar="N", help="on their way (default: %(default)s)")
    parser.add_argument("--bytes", type=int, default=200, metavar="N", help="of a payload (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=5_000, metavar="N", help="keys; 0: none (default: %(default)s)")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where the servers' files go (default: temporary)")


def run(options: argparse.Namespace, say: Say) -> Report:
    """Measure each broker."""
    wanted = options.broker or list(_SERVERS)
    for name in wanted:
        if shutil.which(_PROGRAMS[name], path="/usr/sbin:/usr/bin:/usr/local/bin") is None:
            raise SystemExit(f"{_PROGRAMS[name]} is missing: apt install {_PROGRAMS[name]}")
    figures: dict[str, Any] = {}
    with BenchServer(options.dir) as server, tempfile.TemporaryDirectory(dir=options.dir, prefix="bench-") as place:
        found = machine.facts(server.home)
        say(machine.written(found))
        url = server.create("outbox")
        migrate(url)
        for name in wanted:
            broker = _SERVERS[name](Path(place))
            broker.start()
            try:
                figures[name] = _measure(url, name, broker.url, options, say)
            finally:
                broker.stop()
                if isinstance(broker, Rabbit):
                    broker.close()
    told = "; ".join(
        f"{name} {one['relay']:,.0f} events/s, {one['ratio']}x a bare publisher" for name, one in figures.items()
    )
    line = f"outbox: {told} ({options.batch} on their way, {options.bytes} B, {found['cores']} cores)"
    return Report(line, {"machine": found, "settings": vars(options) | {"dir": str(options.dir)}, "brokers": figures})


def _measure(url: str, name: str, broker: str, options: argparse.Namespace, say: Say) -> dict[str, Any]:
    asyncio.run(_make_topic(name, broker))
    rounds = []
    for turn in range(options.rounds):
        order = ("relay", "bare") if turn % 2 else ("bare", "relay")
        one = {
            which: _relay(url, broker, options) if which == "relay" else _bare(name, broker, options) for which in order
        }
        rounds.append(one)
        say(f"{name} round {turn + 1}: relay {one['relay']:,.0f}/s, bare publisher {one['bare']:,.0f}/s")
    relay, bare = (sorted(one[which] for one in rounds)[len(rounds) // 2] for which in ("relay", "bare"))
    return {"relay": relay, "bare": bare, "ratio": readable(relay / bare), "rounds": rounds}


def _relay(url: str, broker: str, options: argparse.Namespace) -> float:
    """Events a second of a relay that empties a full outbox."""
    count: int = options.events
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(
            "select count(*) from generate_series(1, %s) as n, lateral supervisor.publish(%s,"
            " jsonb_build_object('n', n, 'x', repeat('x', %s)),"
            " key => case when %s > 0 then 'k' || n %% greatest(%s, 1) end) as p",
            (count, _TOPIC, options.bytes, options.keys, options.keys),
        )
        conn.execute("vacuum analyze supervisor.outbox")
        env = {key: value for key, value in os.environ.items() if not key.startswith("SUPERVISOR_")}
        env |= {
            "SUPERVISOR_DATABASE_URL": url,
            "SUPERVISOR_OUTBOX_URL": broker,
            "SUPERVISOR_OUTBOX_BATCH": str(options.batch),
            "SUPERVISOR_HEALTH_PORT": "off",
        }
        said = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
        relay = subprocess.Popen(
            [sys.executable, "-m", "supervisor", "relay"], env=env, stdin=subprocess.DEVNULL, stderr=said
        )
        try:
            seen: list[tuple[float, int]] = []
            deadline = time.monotonic() + _DEADLINE_S
            while not seen or seen[-1][1] > count // 10:
                row = conn.execute("select count(*)::int from supervisor.outbox").fetchone()
                assert row is not None
                seen.append((time.monotonic(), row[0]))
                if relay.poll() is not None or time.monotonic() > deadline:
                    said.seek(0)
                    tail = said.read().decode(errors="replace")[-2000:]
                    raise SystemExit(f"the relay did not empty the outbox, {seen[-1][1]} events are left: {tail}")
                time.sleep(0.02)
            while conn.execute("select from supervisor.outbox limit 1").fetchone() is not None:
                time.sleep(0.02)
        finally:
            relay.terminate()
            relay.wait(30)
            said.close()
        began = next(at for at, left in seen if left <= count - count // 10)
        first = next(left for _, left in seen if left <= count - count // 10)
        return (first - seen[-1][1]) / max(1e-9, seen[-1][0] - began)


def _bare(name: str, broker: str, options: argparse.Namespace) -> float:
    """Events a second of the client's own loop."""
    words = [name, broker, str(options.events), str(options.batch), str(options.bytes)]
    done = subprocess.run([sys.executable, "-m", "bench.publisher", *words], capture_output=True, text=True, check=True)
    return float(done.stdout)


async def _make_topic(name: str, broker: str) -> None:
    from bench import publisher

    await publisher.make_topic(name, broker, _TOPIC)
