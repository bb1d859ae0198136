"""Jobs and data commit together, seen from the job's side."""

import random
import threading
from collections.abc import Callable

import pytest

from supervisor.client import enqueue
from tests.support.database import Database
from tests.support.fault_handlers import MODULES
from tests.support.service import Service
from tests.support.sizes import FULL

Start = Callable[..., Service]
WRITERS = 4
ORDERS_EACH = 150 if FULL else 60


@pytest.mark.timeout(150)
def test_a_job_that_reads_its_row_always_finds_it(db: Database, service: Start) -> None:
    """B49: producers commit row and job together, late or not at all, in savepoints too; no job misses its row."""
    db.execute("create table orders (id bigint primary key, seen int not null default 0)")
    one = service(handlers=MODULES, processes=2, concurrency=5)
    kept: list[int] = []
    dropped: list[int] = []
    failures: list[BaseException] = []

    def write(writer: int) -> None:
        rng = random.Random(writer)
        conn = db.connect(autocommit=False)
        try:
            for n in range(ORDERS_EACH):
                order = writer * 1_000_000 + n
                conn.execute("insert into orders (id) values (%s)", [order])
                enqueue(conn, "f.reads_its_row", {"order_id": order})
                inner = order + 500_000
                try:
                    with conn.transaction():  # a savepoint
                        conn.execute("insert into orders (id) values (%s)", [inner])
                        enqueue(conn, "f.reads_its_row", {"order_id": inner}, priority=rng.randint(-1, 1))
                        if rng.random() < 0.3:
                            raise LookupError
                    found = [order, inner]
                except LookupError:
                    found = [order]
                    dropped.append(inner)
                conn.execute("select pg_sleep(%s)", [rng.random() * 0.01])
                if rng.random() < 0.2:
                    conn.rollback()
                    dropped.extend(found)
                else:
                    conn.commit()
                    kept.extend(found)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(1, WRITERS + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    db.wait_for("select count(*) from supervisor.job", 0, 30)
    print(f">>> {len(kept)} kept, {len(dropped)} dropped")
    assert db.statuses() == {"done": len(kept)}
    assert db.rows("select id from supervisor.history where attempts <> 1") == [], "no job failed to find its row"
    assert dict(db.rows("select id, seen from orders")) == dict.fromkeys(kept, 1)
    assert one.stop() == 0


def test_a_rolled_back_savepoint_wakes_nobody(db: Database, service: Start) -> None:
    """B49: no job, no notification; and the one that stays starts by its own notification."""
    service(handlers=MODULES, processes=1, poll_every_s=60)
    db.wait_for("select count(*) from supervisor.waiting", 1, 10)
    hearer = db.connect()
    hearer.execute("listen supervisor")
    conn = db.connect(autocommit=False)
    with conn.transaction():
        with conn.transaction(force_rollback=True):
            enqueue(conn, "t.effect", queue="never")
        kept = enqueue(conn, "t.effect").id
    db.wait_for("select status from supervisor.jobs where id = %s", "done", 10, [kept])
    heard = [notice.payload for notice in hearer.notifies(timeout=0.5)]
    assert len(heard) == 1
    assert "never" not in heard[0]
    assert db.effects() == {kept: 1}
    assert db.value("select count(*) from supervisor.lane where queue = 'never'") == 0
