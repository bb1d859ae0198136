"""A real Prometheus scrapes a real service in trouble: every expression that is shipped finds something.

An alert's expression is empty while all is well, so of these what is left of the comparison is asked for; a
panel's expressions are asked as they are, with its variables filled in. Something means: a number, not NaN.
"""

import asyncio
import itertools
import math
import random
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from supervisor.client import enqueue, enqueue_many
from supervisor.newjob import NewJob
from supervisor.publisher import publish
from tests.observe.test_rules import OF_THE_CLIENT, RULES, alerts, described, panels
from tests.support import proc
from tests.support.arrivals import ground
from tests.support.brokers import Nats
from tests.support.database import Database
from tests.support.observe_handlers import MODULES
from tests.support.prometheus import Prometheus, tool
from tests.support.service import Service
from tests.support.waiting import wait_until

Start = Callable[..., Service]
TOPIC = "observed"
VARIABLES = {"$job": "supervisor", "$instance": ".*", "$queue": ".*", "$__rate_interval": "20s"}


def left_of_the_comparison(expression: str) -> str:
    """What an alert compares."""
    bare = re.sub(r"^absent\((.*)\)$", r"\1", expression.strip()).partition(" unless ")[0]
    return re.sub(r"\s*(==|>|<)\s*[0-9.e]+(?=$|\s+and\b)", "", bare)


def filled_in(expression: str) -> str:
    """A panel's expression as Grafana would send it."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


class Trouble(threading.Thread):
    """Once a second jobs that are done, retried, dead, crashing, unknown, scheduled, long; events, good and bad."""

    def __init__(self, db: Database, service: Service) -> None:
        super().__init__(name="trouble", daemon=True)
        self._db, self._service = db, service
        self._over = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with psycopg.connect(self._db.conninfo, autocommit=True) as conn:
                for turn in itertools.count():
                    self._turn(conn, turn)
                    if self._over.wait(1.0):
                        return
        except BaseException as error:
            self.failure = error

    def _turn(self, conn: psycopg.Connection[tuple[object, ...]], turn: int) -> None:
        enqueue_many(conn, [NewJob("t.noop")] * 30 + [NewJob("o.order", queue="orders")] * 5)
        enqueue(conn, "t.fail", {"times": 1})
        enqueue(conn, "t.fail", max_attempts=1)
        enqueue(conn, "t.sleep", {"seconds": 3})
        enqueue(conn, "t.noop", in_=3600)
        enqueue(conn, "t.nobody_knows")
        enqueue(conn, "t.noop", ordering_key="account:1")
        enqueue(conn, "t.sleep", {"seconds": 2}, concurrency_key="tenant:1", concurrency_limit=1)
        publish(conn, TOPIC, {}, key=f"k{turn}")
        if turn % 4 == 0:
            publish(conn, "no.stream.takes.this", {})  # refused, and parked
        conn.execute("select pg_notify('supervisor', 'nonsense')")
        conn.execute("update supervisor.schedule set next_at = next_at - interval '5 s'")  # ticks are missed
        if turn % 4 == 0:
            enqueue(conn, "t.exit", max_crashes=1)
        if turn % 4 == 2:
            enqueue_many(conn, [NewJob("t.sleep", {"seconds": 2})] * 20)  # more than may run: some wait in backlogs
            for pid in random.sample(self._service.worker_pids(), 1):
                proc.kill(pid)
        if turn % 5 == 0:
            conn.execute("analyze supervisor.job")
            conn.execute("vacuum analyze supervisor.lane")

    def stop(self) -> None:
        self._over.set()
        self.join(20)
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Nats]:
    """With a stream for `TOPIC`."""
    made = Nats(tmp_path)
    made.start()
    asyncio.run(ground(made, TOPIC).open())
    yield made
    made.stop()


@pytest.mark.timeout(240)
def test_every_expression_of_rules_and_dashboard_finds_something(db: Database, service: Start, broker: Nats) -> None:
    one = service(
        outbox_url=broker.url, outbox_max_attempts=1,
        consume_url=broker.url, consume=f"{TOPIC}=t.noop", consumer="observer",
        handlers=f"{MODULES},tests.support.cron_handlers", processes=2, concurrency=4, prefetch=8, retry_base_s=0.1,
        restart_budget=1000, env={"CRON_ENTRIES": '{"o.tick": [{"cron": "* * * * * *"}]}'},
    )  # fmt: skip
    db.execute("select supervisor.set_queue('orders', 50, 1000)")
    trouble = Trouble(db, one)
    trouble.start()
    with Prometheus(one.health_port, RULES) as prometheus:
        pending = {left_of_the_comparison(rule["expr"]): f"alert {rule['alert']}" for rule in alerts()}
        for one_panel in panels():
            for target in one_panel["targets"]:
                pending[filled_in(target["expr"])] = f"panel {one_panel['title']}"
        assert len(pending) > 60

        def found_all() -> bool:
            assert trouble.is_alive(), trouble.failure
            for expression in list(pending):
                if any(not math.isnan(float(sample["value"][1])) for sample in prometheus.query(expression)):
                    del pending[expression]
            return not pending

        try:
            wait_until(found_all, 120, "every expression finds something")
        except pytest.fail.Exception:
            pytest.fail("these find nothing:\n" + "\n".join(f"{where}: {what}" for what, where in pending.items()))

        # The rules as they are: Prometheus evaluates each without an error.
        groups = prometheus.api("rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert len(rules) == len(alerts())
        wait_until(
            lambda: all(
                rule["health"] == "ok"
                for group in prometheus.api("rules")["groups"]
                for rule in group["rules"]
            ),
            10,
            "each rule is evaluated",
        )  # fmt: skip
        seen: set[str] = set()

        def fired() -> bool:
            seen.update(alert["labels"]["alertname"] for alert in prometheus.api("alerts")["alerts"])
            return {"SupervisorWorkersCrash", "SupervisorJobsDead"} <= seen

        wait_until(fired, 20, "what happened raises its alerts")

        # And every metric that is described exists, no other of ours does.
        names = {name for name in prometheus.api("label/__name__/values") if name.startswith("supervisor_")}
        assert names == set(described())
        assert set(prometheus.api("label/__name__/values")) >= OF_THE_CLIENT | {"shop_orders_total", "shop_open"}
    trouble.stop()

    # The page itself, by Prometheus' own linter.
    page = one.get("/metrics")[1]
    linted = subprocess.run(
        [tool("promtool"), "check", "metrics"], input=page, capture_output=True, text=True, timeout=30
    )
    assert (linted.returncode, linted.stdout + linted.stderr) == (0, "")
    assert one.metric("shop_orders_total", size="small") >= 5
