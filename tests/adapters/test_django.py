"""Enqueueing and publishing on Django's connection: with the caller's atomic block, exactly when it commits."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError
from django.db.utils import IntegrityError
from django.test import Client
from django.test.utils import CaptureQueriesContext

from supervisor import Enqueued, NewJob, client, enqueue, enqueue_many, publish, publish_many
from supervisor.errors import InvalidEvent, InvalidJob, SchemaMissing, UniqueConflict
from supervisor.handler import Handler
from supervisor.newevent import NewEvent
from tests.support.database import Database
from tests.support.libraries import both


def row(conn: Any, number: int) -> None:
    with conn.cursor() as cursor:
        cursor.execute("insert into business values (%s)", [number])


def test_a_job_exists_exactly_when_the_atomic_block_commits(
    django_conn: Any, shop: Database, mail: Handler[Any]
) -> None:
    with transaction.atomic():
        assert mail.enqueue(django_conn, user_id=1).created  # the first statement of the transaction
        row(django_conn, 1)
        assert both(shop) == ([], [])
    with pytest.raises(RuntimeError), transaction.atomic():
        row(django_conn, 2)
        mail.at(in_=timedelta(hours=1)).enqueue(django_conn, user_id=2)
        raise RuntimeError
    assert both(shop) == ([1], [1])
    assert shop.rows("select queue, priority, payload from supervisor.job") == [("email", 2, {"user_id": 1})]


def test_savepoints_take_their_jobs_with_them(django_conn: Any, shop: Database) -> None:
    with transaction.atomic():
        row(django_conn, 1)
        enqueue(django_conn, "adapters.mail", {"user_id": 1})
        with pytest.raises(RuntimeError), transaction.atomic():
            row(django_conn, 2)
            enqueue(django_conn, "adapters.mail", {"user_id": 2})
            raise RuntimeError
        with transaction.atomic():
            row(django_conn, 3)
            enqueue(django_conn, "adapters.mail", {"user_id": 3})
    assert both(shop) == ([1, 3], [1, 3])


def test_requests_that_are_transactions(django_conn: Any, shop: Database) -> None:
    django_conn.settings_dict["ATOMIC_REQUESTS"] = True
    try:
        browser = Client(raise_request_exception=False)
        assert browser.get("/buy/1").status_code == 200
        assert browser.get("/buy/2?fail=1").status_code == 500
    finally:
        django_conn.settings_dict["ATOMIC_REQUESTS"] = False
    assert both(shop) == ([1], [1])


def test_without_a_block_each_call_is_a_transaction(django_conn: Any, shop: Database) -> None:
    enqueue(connections["default"], "adapters.mail", {"user_id": 1}, unique_key="k")
    assert both(shop) == ([], [1])
    jobs = [NewJob("adapters.mail", {"user_id": 2}), NewJob("adapters.mail", {"user_id": 3}, unique_key="k")]
    with pytest.raises(UniqueConflict):
        enqueue_many(django_conn, jobs, on_conflict="raise")
    assert both(shop) == ([], [1])
    assert [answer.created for answer in enqueue_many(django_conn, jobs)] == [True, False]
    assert both(shop) == ([], [1, 2])
    assert django_conn.get_autocommit()


def test_a_transaction_begun_by_hand_is_the_callers_to_end(django_conn: Any, shop: Database) -> None:
    with django_conn.cursor() as cursor:
        cursor.execute("begin")
        enqueue_many(django_conn, [NewJob("adapters.mail", {"user_id": 1})], on_conflict="raise")
        assert both(shop) == ([], [])
        cursor.execute("rollback")
    assert both(shop) == ([], [])
    transaction.set_autocommit(False)
    try:
        enqueue_many(django_conn, [NewJob("adapters.mail", {"user_id": 1})], on_conflict="raise")
        transaction.rollback()
        enqueue_many(django_conn, [NewJob("adapters.mail", {"user_id": 2})], on_conflict="raise")
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert both(shop) == ([], [2])


def test_a_refusal_and_a_conflict_leave_the_transaction_usable(
    django_conn: Any, shop: Database, mail: Handler[Any]
) -> None:
    with transaction.atomic():
        first = mail.at(unique_key="k").enqueue(django_conn, user_id=1)
        with CaptureQueriesContext(django_conn) as sent:
            for bad in ({"text": "\x00"}, {"n": float("nan")}, {"half": "\ud800"}):
                with pytest.raises(InvalidJob, match="payload"):
                    enqueue(django_conn, "adapters.mail", bad)
            with pytest.raises(InvalidJob, match="user_id"):
                mail.enqueue(django_conn, user_id="x")
        assert len(sent) == 0
        with pytest.raises(UniqueConflict) as conflict:
            mail.at(unique_key="k", on_conflict="raise").enqueue(django_conn, user_id=2)
        assert conflict.value.job_id == first.id
        with pytest.raises(UniqueConflict):
            enqueue_many(
                django_conn,
                [NewJob("adapters.mail", {"user_id": 3}), NewJob("adapters.mail", {"user_id": 4}, unique_key="k")],
                on_conflict="raise",
            )
        assert mail.at(unique_key="k").enqueue(django_conn, user_id=5) == Enqueued(first.id, False)
        replaced = mail.at(unique_key="k", on_conflict="replace").enqueue(django_conn, user_id=6)
        assert replaced == Enqueued(first.id, False)
        row(django_conn, 1)
    assert both(shop) == ([1], [6])


def test_a_bulk_goes_in_parts_and_whole(django_conn: Any, shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PART_BYTES", 50_000)
    jobs = [NewJob("adapters.mail", {"user_id": number}) for number in range(3000)]
    with CaptureQueriesContext(django_conn) as sent:
        answers = enqueue_many(django_conn, jobs)
    assert len(sent) > 4
    stored: dict[int, int] = dict(shop.rows("select id, (payload ->> 'user_id')::int from supervisor.job"))
    assert [stored[answer.id] for answer in answers] == list(range(3000))
    assert enqueue_many(django_conn, []) == []


def test_tools_see_the_statement(django_conn: Any) -> None:
    seen = []

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(sql)
        return execute(sql, params, many, context)

    with django_conn.execute_wrapper(watch):
        enqueue(django_conn, "adapters.mail", {"user_id": 1})
    assert len(seen) == 1
    assert '"supervisor".enqueue(' in seen[0]


def test_a_broken_block_is_refused_by_django(django_conn: Any, shop: Database) -> None:
    with transaction.atomic():
        row(django_conn, 1)
    with pytest.raises(TransactionManagementError), transaction.atomic():
        try:
            with transaction.atomic(savepoint=False):
                row(django_conn, 1)
        except IntegrityError:
            enqueue(django_conn, "adapters.mail", {"user_id": 1})
    assert both(shop) == ([1], [])


def test_what_cannot_be_used_is_said(django_conn: Any, blank_db: Database) -> None:
    with pytest.raises(InvalidJob, match="conn: is Django's connection 'lite' to sqlite: must be PostgreSQL"):
        enqueue(connections["lite"], "adapters.mail", {})
    with pytest.raises(InvalidEvent, match="conn: is Django's connection 'lite' to sqlite"):
        publish(connections["lite"], "orders", {})
    with pytest.raises(InvalidJob, match="conn: must be a psycopg Connection"):
        enqueue(connections, "adapters.mail", {})  # type: ignore[call-overload]
    with pytest.raises(SchemaMissing, match="nowhere"):
        enqueue(django_conn, "adapters.mail", {}, schema="nowhere")
    with transaction.atomic():
        django_conn.close()
        with pytest.raises(InvalidJob, match="closed inside an atomic block"):
            enqueue(django_conn, "adapters.mail", {})


def test_an_event_loop_and_another_thread_are_refused_by_django(django_conn: Any, shop: Database) -> None:
    async def in_a_loop() -> None:
        enqueue(django_conn, "adapters.mail", {"user_id": 1})

    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(in_a_loop())

    own = connections["default"]
    own.ensure_connection()
    failed: list[BaseException] = []

    def elsewhere() -> None:
        try:
            enqueue(own, "adapters.mail", {"user_id": 2})
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(30)
    assert "thread" in str(failed[0])
    assert both(shop) == ([], [])


def test_events_too(django_conn: Any, shop: Database) -> None:
    with transaction.atomic():
        first = publish(django_conn, "orders.created", {"n": 1}, key="k", headers={"a": "b"})
        several = publish_many(django_conn, [NewEvent("orders.paid", {"n": n}) for n in range(3)])
        assert shop.value("select count(*) from supervisor.outbox") == 0
    with pytest.raises(RuntimeError), transaction.atomic():
        publish(django_conn, "orders.created", {"n": 2})
        raise RuntimeError
    found = shop.rows("select id from supervisor.outbox order by id")
    assert [row[0] for row in found] == [first.id, *(event.id for event in several)]
