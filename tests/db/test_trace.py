"""Spans of enqueueing, with the real SDK: one per call, its context in the headers of each job, nothing in it
that is nobody's business, and no cost where nothing is traced."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace as api
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from supervisor import NewJob, enqueue, enqueue_many, handler, trace
from supervisor.errors import UniqueConflict
from supervisor.keys import Enqueued
from tests.support.database import Database


class Spans:
    """What was exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def take(self) -> list[ReadableSpan]:
        found = list(self.exporter.get_finished_spans())
        self.exporter.clear()
        return found

    def one(self) -> ReadableSpan:
        [span] = self.take()
        return span


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    made = Spans()
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", made.provider)
    yield made
    made.provider.shutdown()


def headers(db: Database, job_id: int) -> dict[str, Any]:
    return dict(db.value("select headers from supervisor.jobs where id = %s", [job_id]))


def traceparent(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def test_one_job_carries_the_context_of_its_span(db: Database, spans: Spans) -> None:
    with db.connect() as conn:
        answer = enqueue(conn, "mail", {"to": "hidden@example"}, queue="post", unique_key="hidden-key")
    span = spans.one()
    assert (span.name, span.kind) == ("enqueue mail", api.SpanKind.PRODUCER)
    assert dict(span.attributes or {}) == {
        "messaging.system": "pg_supervisor",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "post",
        "messaging.message.id": str(answer.id),
        "supervisor.job.kind": "mail",
        "supervisor.job.created": True,
    }
    assert "hidden" not in span.to_json()
    assert headers(db, answer.id) == {"traceparent": traceparent(span)}


async def test_one_job_on_an_async_connection(db: Database, spans: Spans) -> None:
    async with await db.aconnect() as conn:
        answer = await enqueue(conn, "mail", headers={"tenant": "x"})
    assert headers(db, answer.id) == {"tenant": "x", "traceparent": traceparent(spans.one())}


@pytest.mark.parametrize("count", [3, 2500])
async def test_a_bulk_is_one_span_and_each_job_carries_it(db: Database, spans: Spans, count: int) -> None:
    """By one statement and by COPY, sync and async."""
    with db.connect() as conn:
        first = enqueue_many(conn, [NewJob("mail")] * count)
    async with await db.aconnect() as aconn:
        second = await enqueue_many(aconn, [NewJob("mail", queue="b"), NewJob("bill")] + [NewJob("mail")] * count)
    one, two = spans.take()
    assert (one.name, (one.attributes or {})["messaging.batch.message_count"]) == ("enqueue mail", count)
    assert (two.name, (two.attributes or {})["messaging.batch.message_count"]) == ("enqueue", count + 2)
    assert "messaging.destination.name" not in (two.attributes or {})
    for span, answers in ((one, first), (two, second)):
        ids = [answer.id for answer in answers]
        found = db.rows("select distinct headers ->> 'traceparent' from supervisor.job where id = any (%s)", [ids])
        assert found == [(traceparent(span),)]


@pytest.mark.parametrize("count", [3, 2500])
def test_a_handlers_bulk_is_one_span_and_each_job_carries_it(db: Database, spans: Spans, count: int) -> None:
    def send(n: int) -> None: ...

    answers = handler("traced.bulk")(send).enqueue_many(db.connect(), [{"n": n} for n in range(count)])
    span = spans.one()
    assert (span.name, (span.attributes or {})["messaging.batch.message_count"]) == ("enqueue traced.bulk", count)
    found = db.rows("select headers ->> 'traceparent', (payload ->> 'n')::int from supervisor.job order by id")
    assert found == [(traceparent(span), n) for n in range(len(answers))]


def test_a_span_around_the_call_is_the_parent_and_the_statement_is_inside(db: Database, spans: Spans) -> None:
    tracer = spans.provider.get_tracer("shop")
    with db.connect() as conn, tracer.start_as_current_span("checkout") as outer:
        answer = enqueue(conn, "mail")
        assert api.get_current_span() is outer
    inner, _ = spans.take()
    assert inner.parent is not None
    assert inner.parent.span_id == outer.get_span_context().span_id
    assert headers(db, answer.id) == {"traceparent": traceparent(inner)}


def test_headers_of_the_caller_are_left_as_they_are(db: Database, spans: Spans) -> None:
    own = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "n": 1}
    with db.connect() as conn:
        assert headers(db, enqueue(conn, "mail", headers=own).id) == own
        full = {"text": "x" * (64 * 1024 - 20)}  # no room for more: the job matters more
        assert headers(db, enqueue(conn, "mail", headers=full).id) == full
        nested = {"deep": {"traceparent": "not a header"}}
        job_id = enqueue(conn, "mail", headers=nested).id
    span = spans.take()[-1]
    assert headers(db, job_id) == {**nested, "traceparent": traceparent(span)}


def test_a_refused_enqueue_is_an_error_without_its_text(db: Database, spans: Spans) -> None:
    with db.connect() as conn:
        enqueue(conn, "mail", unique_key="hidden-key")
        spans.take()
        with pytest.raises(UniqueConflict):
            enqueue(conn, "mail", unique_key="hidden-key", on_conflict="raise")
        span = spans.one()
        with pytest.raises(UniqueConflict):
            enqueue_many(conn, [NewJob("mail", unique_key="hidden-key")], on_conflict="raise")
        bulk = spans.one()
    for each in (span, bulk):
        assert each.status.status_code is api.StatusCode.ERROR
        assert (each.attributes or {})["error.type"] == "supervisor.errors.UniqueConflict"
        assert "hidden" not in each.to_json()


def test_a_job_that_is_there_already_is_told(db: Database, spans: Spans) -> None:
    with db.connect() as conn:
        first = enqueue(conn, "mail", unique_key="k")
        assert enqueue(conn, "mail", unique_key="k") == Enqueued(first.id, False)
    attributes = spans.take()[-1].attributes or {}
    assert (attributes["messaging.message.id"], attributes["supervisor.job.created"]) == (str(first.id), False)


def test_a_span_that_is_not_sampled_still_says_so(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever runs the job would sample anew, and show a trace with half its spans."""
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", TracerProvider(sampler=ALWAYS_OFF))
    with db.connect() as conn:
        carried = headers(db, enqueue(conn, "mail").id)["traceparent"]
    assert int(carried.rpartition("-")[2], 16) & api.TraceFlags.SAMPLED == 0


def test_a_broken_span_processor_harms_no_enqueue(db: Database, spans: Spans) -> None:
    class Broken(SpanProcessor):
        def on_start(self, span: object, parent_context: object = None) -> None:
            raise RuntimeError("broken on start")

    class BrokenLater(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            raise RuntimeError("broken on end")

    for processor in (BrokenLater(), Broken()):
        spans.provider.add_span_processor(processor)
        with db.connect() as conn:
            assert enqueue(conn, "mail").created
            assert len(enqueue_many(conn, [NewJob("mail")] * 2)) == 2


def test_without_a_provider_nothing_is_carried(db: Database) -> None:
    with db.connect() as conn:
        assert headers(db, enqueue(conn, "mail").id) == {}


def test_a_producer_that_does_not_trace_does_not_import_opentelemetry() -> None:
    code = "import supervisor, supervisor.client, sys; print([m for m in sys.modules if m.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_not_traced_costs_next_to_nothing(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the cheapest thing an enqueue does before its round trip: making the checked job. Best of many, each
    measured in the same run."""
    jobs = [NewJob("mail", {"to": "x"})]

    def untraced() -> None:
        with trace.sending(jobs) as span:
            span.carried(jobs)
            span.stored([(1, True)])

    def best(call: Callable[[], object]) -> float:
        times = []
        for _ in range(15):
            began = time.perf_counter()
            for _ in range(500):
                call()
            times.append(time.perf_counter() - began)
        return min(times) / 500

    made = best(lambda: NewJob("mail", {"to": "x"}))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", None)
    no_provider = best(untraced)
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    not_installed = best(untraced)
    print(
        f"untraced: {not_installed * 1e6:.2f} us without OpenTelemetry, {no_provider * 1e6:.2f} us without a provider,"
        f" beside {made * 1e6:.1f} us for making the job"
    )
    assert not_installed < made / 2
    assert no_provider < made * 2
