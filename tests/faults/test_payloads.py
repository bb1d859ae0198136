"""What producers of other releases and other languages put into the queue stops nobody."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from supervisor.client import enqueue, enqueue_many
from supervisor.newjob import NewJob
from tests.support.database import Database
from tests.support.fault_handlers import MODULES
from tests.support.service import Service
from tests.support.sizes import within
from tests.support.waiting import wait_until

Start = Callable[..., Service]
OLDER = "tests.support.handlers"


def insert(db: Database, kind: str, payload: object, **columns: object) -> int:
    """A row as any program may write it."""
    names = ", ".join(["kind", "payload", *columns])
    marks = ", ".join(["%s"] * (2 + len(columns)))
    found: int = db.value(
        f"insert into supervisor.job ({names}) values ({marks}) returning id",
        [kind, json.dumps(payload), *columns.values()],
    )
    return found


def test_an_unknown_kind_is_put_back_and_done_by_a_service_that_knows_it(db: Database, service: Start) -> None:
    """B21: an older service meets a newer one's job; its batch mates run, it loses no attempt, and it is counted."""
    older = service(handlers=OLDER, processes=1)
    workers = older.worker_pids()
    job = insert(db, "f.newer", {})
    mates = [insert(db, "t.effect", {}) for _ in range(20)]
    db.wait_for("select count(*) from supervisor.jobs where status = 'done' and id = any(%s)", 20, 5, [mates])
    db.wait_for("select unknown_since is not null and lease is null from supervisor.job where id = %s", True, 5, [job])
    found = db.rows("select status, attempts, crashes, last_error from supervisor.jobs where id = %s", [job])
    assert found[0][:3] == ("queued", 0, 0)
    assert "f.newer" in found[0][3]
    wait_until(lambda: older.metric("supervisor_unknown_kinds_total") >= 1, 5, "it is counted")
    assert older.worker_pids() == workers
    service(handlers=MODULES, processes=1)
    assert older.stop() == 0  # the deploy is done; until then either may have taken the job
    db.wait_for("select status from supervisor.jobs where id = %s", "done", 20, [job])
    assert db.rows("select attempts, crashes from supervisor.jobs where id = %s", [job]) == [(1, 0)]
    assert db.effects("done")[job] == 1


def test_an_unknown_kind_is_dead_after_the_limit(db: Database, service: Start) -> None:
    """B21: for ever is no answer either."""
    service(handlers=OLDER, processes=1, unknown_kind_limit_s=1)
    job = insert(db, "f.newer", {})
    db.wait_for("select status from supervisor.jobs where id = %s", "dead", 15, [job])
    reason, text = db.rows("select reason, last_error from supervisor.jobs where id = %s", [job])[0]
    assert reason == "unknown_kind"
    assert "f.newer" in text


SECRET = "s3cret-value"
UNREADABLE: dict[str, tuple[Any, str]] = {
    "wrong_name": ({"nummer": 1}, "number"),
    "missing": ({}, "number"),
    "extra": ({"number": 1, "surplus": SECRET}, "surplus"),
    "wrong_type": ({"number": SECRET}, "number"),
    "null": ({"number": None}, "number"),
    "nested_wrong_type": ({"number": 1, "names": ["a", {"b": SECRET}]}, "names"),
    "list": ([1, 2], "payload (model_type)"),
    "text": (SECRET, "payload (model_type)"),
    "number": (7, "payload (model_type)"),
    "nothing": (None, "payload (model_type)"),
}


def test_unreadable_payloads_are_dead_at_once_with_a_clear_text(db: Database, service: Start) -> None:
    """B21: within 2 s, by the reason `payload`, naming the argument and quoting nothing; batch mates unaffected."""
    one = service(handlers=MODULES, processes=1)
    workers = one.worker_pids()
    jobs: dict[str, int] = {}
    mates: list[int] = []
    with db.connect().transaction():
        for name, (payload, _) in UNREADABLE.items():
            jobs[name] = insert(db, "f.typed", payload)
            mates.append(insert(db, "f.typed", {"number": len(mates), "names": ["a"]}))
    began = time.monotonic()
    db.wait_for(
        "select count(*) from supervisor.jobs where status = 'dead' and id = any(%s)", len(jobs), 10, [[*jobs.values()]]
    )
    took = time.monotonic() - began
    print(f">>> all dead {took:.2f} s after the insert")
    assert took < within(2, busy_s=8)
    for name, job in jobs.items():
        reason, text, attempts, crashes = db.rows(
            "select reason, last_error, attempts, crashes from supervisor.jobs where id = %s", [job]
        )[0]
        print(f">>> {name}: {text!r}")
        assert (reason, attempts, crashes) == ("payload", 1, 0), name
        assert UNREADABLE[name][1] in text, name
        assert SECRET not in text
        assert "Traceback" not in text
    db.wait_for("select count(*) from supervisor.jobs where status = 'done'", len(mates), 10)
    assert db.effects().keys() == set(mates)
    assert one.worker_pids() == workers
    assert SECRET not in one.tail(1000)
    assert one.stop() == 0


def test_a_queue_full_of_unreadable_jobs_holds_up_nobody(db: Database, service: Start) -> None:
    """B21: thousands of rows that nobody can run, of one release's mistake."""
    service(handlers=MODULES, processes=2)
    db.execute(
        "insert into supervisor.job (kind, payload) select case when n % 2 = 0 then 'f.typed' else 'f.nobody' end,"
        " '{\"x\": 1}' from generate_series(1, 2000) n"
    )
    good = [job.id for job in enqueue_many(db.connect(), [NewJob("t.effect")] * 100)]
    db.wait_for("select count(*) from supervisor.jobs where status = 'done' and id = any(%s)", 100, 20, [good])
    db.wait_for("select count(*) from supervisor.jobs where reason = 'payload'", 1000, 20)
    db.wait_for("select count(*) from supervisor.job where unknown_since is not null", 1000, 20)


def test_what_json_can_hold_reaches_the_handler_as_it_was(db: Database, service: Start) -> None:
    """B20, B26: 1 MB, 2,000 four-byte characters, controls, quotes; through enqueue and through plain SQL."""
    service(handlers=MODULES, processes=1)
    texts = {
        "a megabyte": "x" * 1_000_000,
        "four-byte characters": "\N{MAHJONG TILE RED DRAGON}" * 2000,
        "odd": "\x01\x1f\x7f'\"\\ \u2028 %s {} \ufffe e\u0301",
        "empty": "",
    }
    conn = db.connect()
    jobs = {name: enqueue(conn, "f.measure", {"text": text}).id for name, text in texts.items()}
    by_sql = {
        name: db.value("select id from supervisor.enqueue('f.measure', %s::jsonb)", [json.dumps({"text": text})])
        for name, text in texts.items()
    }
    db.wait_for("select count(*) from supervisor.jobs where status = 'done'", 2 * len(texts), 20)
    for name, text in texts.items():
        for job in (jobs[name], by_sql[name]):
            assert db.value("select note from effects where job_id = %s", [job]) == f"{len(text)} characters", name


@pytest.mark.timeout(180)
def test_5000_jobs_in_500_queues_of_one_transaction_all_run(db: Database, service: Start) -> None:
    """B26: what a notification cannot hold (60-byte names, 500 of them) is not in it."""
    one = service(handlers=MODULES, processes=2, concurrency=10, poll_every_s=60)
    queues = [f"queue-{n:03d}-".ljust(60, "ü")[:56] for n in range(500)]
    queues = [queue.encode()[:60].decode(errors="ignore") for queue in queues]
    assert len(set(queues)) == 500
    assert all(len(queue.encode()) >= 59 for queue in queues)
    conn = db.connect(autocommit=False)
    began = time.monotonic()
    with conn.transaction():
        enqueue_many(conn, [NewJob("t.effect", queue=queues[n % 500]) for n in range(5000)])
    stored = time.monotonic() - began
    db.wait_for("select count(*) from supervisor.history", 5000, 90)
    print(f">>> stored in {stored:.2f} s, all run {time.monotonic() - began:.1f} s after the start")
    assert set(db.effects("done").values()) == {1}
    assert db.value("select count(*) from supervisor.job") == 0
    assert one.stop() == 0
