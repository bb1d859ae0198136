"""Bloated indexes rebuilt by running services: nobody notices, whoever is killed or stopped in the middle."""

import signal
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support.bloat import SESSION, bloat, left, remembered, sizes, under_way
from tests.support.database import Database
from tests.support.jobs import enqueue, wait_done
from tests.support.service import Service
from tests.support.sizes import within
from tests.support.waiting import wait_until

Start = Callable[..., Service]
EAGER = {"rebuild_indexes_mb": 1, "watch_every_s": 0.05, "lease_s": 3.0, "reap_every_s": 0.5}
EACH = 20


def writer(db: Database) -> psycopg.Connection[tuple[Any, ...]]:
    """A young transaction that stays open: a rebuild begins, and waits for it."""
    conn = db.connect(autocommit=False)
    conn.execute("lock table supervisor.job in row exclusive mode")
    return conn


def hold_one(db: Database, service: Start) -> tuple[Service, psycopg.Connection[tuple[Any, ...]]]:
    """A service in the middle of a rebuild, which goes on for as long as the transaction."""
    bloat(db)
    holder = writer(db)
    one = service(**EAGER)
    wait_until(lambda: under_way(db), 15, "a rebuild is under way")
    wait_until(lambda: left(db), 5, "its new index is there")
    return one, holder


def test_jobs_go_on_while_indexes_are_rebuilt(db: Database, service: Start) -> None:
    bloat(db)
    before = sizes(db)
    one = service(**EAGER)
    ids: list[int] = []
    longest = 0.0
    while len(one.events("rebuild.done")) < 3:
        began = time.monotonic()
        ids += enqueue(db, "t.effect", count=EACH)
        wait_done(db, len(ids))
        longest = max(longest, time.monotonic() - began)
        assert len(ids) < 1000 * EACH, "the rebuilds are done long before this"
    assert longest < within(1.0, busy_s=4.0), "no batch of jobs waited for a rebuild"
    assert db.effects("done") == dict.fromkeys(ids, 1)
    after = sizes(db)
    for event in one.events("rebuild.done"):
        assert event["bytes_before"] >= before[event["index"]]
        assert event["bytes_after"] < 0.5 * event["bytes_before"]
        assert after[event["index"]] < 0.5 * before[event["index"]]
    assert left(db) == []
    assert one.stop() == 0


def test_a_killed_parent_leaves_nothing_for_long(db: Database, service: Start) -> None:
    one, holder = hold_one(db, service)
    one.kill()
    wait_until(lambda: not db.server_sessions(SESSION), 10, "the server has noticed, though the statement waited")
    [index] = remembered(db)
    assert remembered(db)[index][0] == "begun"
    assert left(db) == [f"{index}_ccnew"]
    other = service(**EAGER)
    holder.rollback()
    assert other.wait_event("rebuild.cleared", 60)["index"] == f"{index}_ccnew"
    assert remembered(db)[index][0] == "begun", "it counts as failed, and is not tried again at once"
    db.execute("update supervisor.rebuild set next_at = now() where index_name = %s", [index])
    wait_until(lambda: remembered(db)[index][0] == "done", 60, "the next leader has rebuilt it")
    assert left(db) == []


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGUSR1])
def test_a_stop_does_not_wait_for_a_rebuild(db: Database, service: Start, sig: signal.Signals) -> None:
    one, holder = hold_one(db, service)
    began = time.monotonic()
    one.send(sig)
    one.wait_event("supervisor.drained")
    assert time.monotonic() - began < within(2, busy_s=10)
    wait_until(lambda: not db.server_sessions(SESSION), 10, "the server has ended the statement")
    assert one.stop() == 0
    holder.rollback()
