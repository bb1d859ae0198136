"""The shipped handlers, run by the real service."""

import json
import os
import random
import signal
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from http.server import BaseHTTPRequestHandler

from handlers.report import build
from supervisor import NewJob, enqueue_many
from tests.support.database import Database
from tests.support.receiver import Receiver, status
from tests.support.service import Service
from tests.support.waiting import wait_until

StartService = Callable[..., Service]

DAY = date(2026, 11, 28)
SHOP = """
create table sale (at timestamptz not null, product text not null, quantity int not null, price numeric not null);
create table sales_report (day date not null, job_id bigint not null, lines jsonb not null, total numeric not null);
insert into sale values ('2026-11-27 23:59:59Z', 'yesterday', 1, 1), ('2026-11-28 00:00Z', 'tea', 2, 3.50),
                        ('2026-11-28 12:00Z', 'pot', 1, 20), ('2026-11-28 23:59:59.999Z', 'tea', 1, 3.50),
                        ('2026-11-29 00:00Z', 'tomorrow', 1, 1)
"""
COUNT = "select count(*) from sales_report"
LAB_CALL = (
    "create table lab_call (kind text, job_id bigint, attempt int, pid int, at timestamptz default clock_timestamp())"
)


def test_report_sums_up_its_day_and_tells_when_it_is_there(db: Database, service: StartService) -> None:
    """The webhook of a report is enqueued by the transaction that stores the report and ends the job."""
    db.execute(SHOP)
    with Receiver() as receiver:
        later = status(503, {"retry-after": "0"})

        def refuse_once(to: BaseHTTPRequestHandler) -> None:
            answer = later if len(receiver.requests) == 1 else status(204)
            answer(to)

        receiver.answer = refuse_once
        env = {"WEBHOOK_SECRET": "key", "WEBHOOK_ALLOW_NETWORKS": "127.0.0.0/8"}
        service(handlers="handlers", env=env)
        made = build.enqueue(db.connect(), day=DAY, notify=receiver.url)
        db.wait_for("select count(*) from supervisor.jobs where status = 'done'", 2)

    [(day, job_id, lines, total)] = db.rows("select day, job_id, lines, total from sales_report")
    assert (day, job_id, total) == (DAY, made.id, Decimal("30.50"))
    assert lines == [
        {"product": "pot", "quantity": 1, "amount": 20},
        {"product": "tea", "quantity": 3, "amount": 10.5},
    ]
    refused, delivered = receiver.requests
    assert json.loads(delivered[2])["data"] == {"day": "2026-11-28", "total": "30.50"}
    assert refused[1]["idempotency-key"] == delivered[1]["idempotency-key"]


def test_report_whose_worker_is_killed_in_its_transaction_leaves_one(db: Database, service: StartService) -> None:
    """Its insert had been sent when the worker died: the server must not commit it, and the next run does."""
    db.execute(SHOP)
    running = service(handlers="handlers", processes=1, retry_base_s=0.01)
    [worker] = running.wait_workers(1)
    gate = db.connect(autocommit=False)
    gate.execute("lock table sales_report in share mode")
    made = build.enqueue(db.connect(), day=DAY)
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%sales_report%'"
    db.wait_for(waiting, 1)
    os.kill(worker, signal.SIGKILL)
    db.wait_for("select crashes from supervisor.jobs where id = %s", 1, params=[made.id])
    gate.commit()

    db.wait_for("select status from supervisor.jobs where id = %s", "done", params=[made.id])
    assert db.rows("select job_id, total from sales_report") == [(made.id, Decimal("30.50"))]
    assert db.rows("select attempts, crashes, claims from supervisor.jobs") == [(1, 1, 2)]


def test_each_report_is_there_once_whenever_workers_are_killed(db: Database, service: StartService) -> None:
    """Kills before, in and after the transactions of 60 reports, 12 times."""
    db.execute(SHOP)
    # Wide enough a window for kills to fall into it.
    db.execute(
        "create function slowly() returns trigger language plpgsql as"
        " $$ begin perform pg_sleep(0.02); return new; end $$"
    )
    db.execute("create trigger slowly before insert on sales_report for each row execute function slowly()")
    running = service(handlers="handlers", processes=2, concurrency=3, retry_base_s=0.01, restart_backoff_s=0)
    made = build.at(max_crashes=100).enqueue_many(db.connect(), [{"day": DAY}] * 60)
    rng = random.Random(20261129)
    for _ in range(12):
        target = min(60, db.value(COUNT) + 1)
        wait_until(partial(reports_are, db, target), 20, "another report is there")
        if workers := running.worker_pids():
            os.kill(rng.choice(workers), signal.SIGKILL)

    wait_until(lambda: db.statuses() == {"done": 60}, 30, "all are done")
    reports = db.rows("select job_id, count(*)::int from sales_report group by 1")
    assert dict(reports) == {job.id: 1 for job in made}
    assert db.value("select sum(attempts) from supervisor.jobs") == 60, "no kill counted as a failure"


def test_lab_kinds_do_what_their_names_say(db: Database, service: StartService) -> None:
    db.execute(LAB_CALL)
    service(handlers="handlers.lab", lease_s=0.4, reap_every_s=0.2, env={"SUPERVISOR_LAB_DATABASE_URL": db.conninfo})
    kinds = ("email", "flaky", "broken", "slow")
    enqueue_many(db.connect(), [NewJob(kind, {"n": n}, max_attempts=3) for n, kind in enumerate(kinds)])
    db.wait_for("select count(*) from supervisor.jobs where status in ('done', 'dead')", 4)

    ended = db.rows("select kind, status, attempts, crashes from supervisor.jobs order by id")
    assert ended == [("email", "done", 1, 0), ("flaky", "done", 2, 0), ("broken", "dead", 3, 0), ("slow", "done", 1, 0)]
    calls = db.rows("select kind, array_agg(attempt order by at) from lab_call group by kind")
    assert dict(calls) == {"email": [1], "flaky": [1, 2], "broken": [1, 2, 3], "slow": [1]}
    assert "ValueError: broken 2 always fails" in db.value(
        "select last_error from supervisor.jobs where kind = 'broken'"
    )
    took = db.value("select finished_at - started_at from supervisor.jobs where kind = 'slow'")
    assert took.total_seconds() >= 0.9
    now = db.value("select max(at) from lab_call")
    assert abs((now - datetime.now(UTC)).total_seconds()) < 60


def reports_are(db: Database, at_least: int) -> bool:
    return bool(db.value(COUNT) >= at_least)
