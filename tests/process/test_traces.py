"""Spans of runs, in real workers with the real SDK and exporters that write to a file of the test's."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from supervisor import enqueue as enqueue_job
from supervisor import exits
from tests.support import proc
from tests.support.database import Database
from tests.support.jobs import enqueue, job, wait_done
from tests.support.service import Service
from tests.support.sizes import within
from tests.support.waiting import wait_until

TRACED = "tests.support.traced_handlers"
SENDER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

Span = dict[str, Any]
Traced = Callable[..., Service]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "spans"


@pytest.fixture
def traced(service: Callable[..., Service], file: Path) -> Traced:
    def start(provider: str = "to_file", **settings: object) -> Service:
        given = {"processes": 1, "handlers": TRACED, "env": {"TRACES_FILE": str(file)}, **settings}
        return service(traces=f"{TRACED}:{provider}", **given)

    return start


def spans(file: Path) -> list[Span]:
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def of_job(file: Path, job_id: int) -> list[Span]:
    return [span for span in spans(file) if span["attributes"].get("messaging.message.id") == str(job_id)]


def links(span: Span) -> list[str]:
    return [f"{link['context']['trace_id']}/{link['context']['span_id']}" for link in span["links"]]


def test_a_run_is_linked_to_what_enqueued_it(
    db: Database, traced: Traced, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Python and from plain SQL; async and in a thread; the handler's own spans are inside, and its log
    lines name them."""
    one = traced()
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", TracerProvider())
    with db.connect() as conn:
        first = enqueue_job(conn, "o.async", queue="post").id
    carried = job(db, first)["headers"]["traceparent"].split("-")
    [second] = enqueue(db, "o.sync", headers={"traceparent": SENDER, "tracestate": "vendor=x"})
    [third] = enqueue(db, "o.sync")
    wait_done(db, 3)
    assert one.stop() == exits.OK
    sent = SENDER.split("-")
    for job_id, kind, queue, linked in (
        (first, "o.async", "post", [f"0x{carried[1]}/0x{carried[2]}"]),
        (second, "o.sync", "default", [f"0x{sent[1]}/0x{sent[2]}"]),
        (third, "o.sync", "default", []),
    ):
        [span] = of_job(file, job_id)
        assert (span["name"], span["kind"], span["parent_id"]) == (f"run {kind}", "SpanKind.CONSUMER", None)
        assert links(span) == linked
        assert span["attributes"] == {
            "messaging.system": "pg_supervisor",
            "messaging.operation.name": "run",
            "messaging.operation.type": "process",
            "messaging.destination.name": queue,
            "messaging.message.id": str(job_id),
            "messaging.client.id": f"{one.wait_event('supervisor.starting')['name']}/0",
            "supervisor.job.kind": kind,
            "supervisor.job.attempt": 1,
            "supervisor.job.max_attempts": 20,
            "supervisor.job.crashes": 0,
            "supervisor.job.outcome": "done",
        }
        trace_id, span_id = span["context"]["trace_id"], span["context"]["span_id"]
        assert trace_id not in ("0x" + carried[1], "0x" + sent[1])
        [inside] = [other for other in spans(file) if other["name"] == "inside" and other["parent_id"] == span_id]
        assert inside["context"]["trace_id"] == trace_id
        [told] = one.events("told.inside", job_id=job_id)
        assert (f"0x{told['trace_id']}", f"0x{told['span_id']}") == (trace_id, inside["context"]["span_id"])
    [told] = one.events("told.thread")
    assert told["trace_id"] == one.events("told.inside", job_id=first)[0]["trace_id"]
    assert "trace_id" not in one.wait_event("supervisor.ready")


def test_as_a_child_where_that_is_asked_for(db: Database, traced: Traced, file: Path) -> None:
    one = traced(trace_relation="parent")
    [job_id] = enqueue(db, "o.async", headers={"traceparent": SENDER})
    wait_done(db, 1)
    assert one.stop() == exits.OK
    [span] = of_job(file, job_id)
    _, trace_id, span_id, _ = SENDER.split("-")
    assert (span["context"]["trace_id"], span["parent_id"], span["links"]) == (f"0x{trace_id}", f"0x{span_id}", [])


def test_each_attempt_is_a_span_with_its_error_and_without_its_payload(
    db: Database, traced: Traced, file: Path
) -> None:
    one = traced(handlers=TRACED, retry_base_s=0.01)
    [failing] = enqueue(db, "o.fails", {"secret": "swordfish"}, max_attempts=3, headers={"traceparent": SENDER})
    [cancelling] = enqueue(db, "o.cancels")
    [slow] = enqueue(db, "o.slow", max_attempts=1)
    [refused] = enqueue(db, "o.fails", {"secret": ["swordfish"]}, max_attempts=1)
    wait_until(lambda: db.value("select count(*)::int from supervisor.dead_letter") == 4, 20, "all are dead")
    assert one.stop() == exits.OK
    attempts = of_job(file, failing)
    assert [span["attributes"]["supervisor.job.attempt"] for span in attempts] == [1, 2, 3]
    assert len({span["context"]["trace_id"] for span in attempts}) == 3
    assert len({links(span)[0] for span in attempts}) == 1
    for job_id, error, outcome in (
        (failing, "ValueError", "failed"),
        (cancelling, "cancel", "dead"),
        (slow, "timeout", "failed"),
        (refused, "payload", "dead"),
    ):
        span = of_job(file, job_id)[0]
        assert span["status"]["status_code"] == "ERROR"
        assert "description" not in span["status"]
        assert span["attributes"]["error.type"] == error
        assert span["attributes"]["supervisor.job.outcome"] == outcome
    [event] = attempts[0]["events"]
    assert (event["name"], event["attributes"]["exception.type"]) == ("exception", "ValueError")
    assert "traced_handlers.py" in event["attributes"]["exception.stacktrace"]
    assert "swordfish" not in file.read_text()


def test_what_a_handler_enqueues_is_part_of_its_trace(db: Database, traced: Traced, file: Path) -> None:
    one = traced()
    [job_id] = enqueue(db, "o.enqueues")
    wait_done(db, 2)
    assert one.stop() == exits.OK
    [span] = of_job(file, job_id)
    [sent] = [other for other in spans(file) if other["name"] == "enqueue o.async"]
    [run] = [other for other in spans(file) if other["name"] == "run o.async"]
    assert (sent["parent_id"], sent["kind"]) == (span["context"]["span_id"], "SpanKind.PRODUCER")
    assert links(run) == [f"{sent['context']['trace_id']}/{sent['context']['span_id']}"]


BAD: dict[str, object] = {
    "no hex": "zz-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "empty": "",
    "zeros": "00-00000000000000000000000000000000-0000000000000000-00",
    "long": "0" * 50_000,
    "number": 7,
    "null": None,
    "list": ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"],
    "object": {"traceparent": SENDER},
}


def test_a_bad_traceparent_harms_no_job(db: Database, traced: Traced, file: Path) -> None:
    one = traced()
    ids = {name: enqueue(db, "o.sync", headers={"traceparent": value})[0] for name, value in BAD.items()}
    states = [SENDER, SENDER]
    odd = enqueue(db, "o.sync", headers={"traceparent": SENDER, "tracestate": ["=", states]})[0]
    deep = db.value(
        "select id from supervisor.enqueue('o.sync', headers => ('{\"traceparent\": ' || repeat('[', 5000)"
        " || repeat(']', 5000) || '}')::jsonb)"
    )
    wait_done(db, len(BAD) + 2)
    assert one.stop() == exits.OK
    for job_id in (*ids.values(), deep):
        [span] = of_job(file, job_id)
        assert span["links"] == []
    [span] = of_job(file, odd)
    assert len(span["links"]) == 1
    assert not [event for event in one.log if event["level"] in ("warning", "error")]


def test_a_killed_worker_loses_only_what_it_had_not_exported(db: Database, traced: Traced, file: Path) -> None:
    one = traced(drain_timeout_s=1)
    before = enqueue(db, "o.sync", count=20)
    wait_done(db, 20)
    wait_until(lambda: all(of_job(file, job_id) for job_id in before), 10, "the spans of those that ended are exported")
    [held] = enqueue(db, "o.hold")
    one.wait_event("told.held")
    [pid] = one.worker_pids()
    proc.kill(pid, signal.SIGKILL)
    one.wait_event("worker.recovered")
    after = enqueue(db, "o.sync", count=20)
    wait_done(db, 40)
    one.wait_event("told.held", count=2)
    assert one.stop() in (exits.OK, exits.CUT)
    found = spans(file)
    assert len({span["pid"] for span in found}) == 2
    assert all(len(of_job(file, job_id)) == 1 for job_id in (*before, *after))
    assert [span["pid"] for span in of_job(file, held)] in ([], [found[-1]["pid"]]), "the killed run has no span"


def test_what_is_left_is_exported_when_a_worker_leaves(db: Database, traced: Traced, file: Path) -> None:
    """By an exporter that else exports once an hour, in the worker that is recycled and in the one that drains."""
    one = traced("late", max_jobs=10)
    first = enqueue(db, "o.sync", count=15)
    wait_done(db, 15)
    one.wait_event("worker.ready", count=2)
    wait_until(lambda: len(spans(file)) >= 20, 10, "the recycled worker has exported its spans")
    second = enqueue(db, "o.async")
    wait_done(db, 16)
    assert one.stop() == exits.OK
    assert all(len(of_job(file, job_id)) == 1 for job_id in (*first, *second))


def test_an_exporter_that_hangs_holds_up_no_job_and_no_drain(
    db: Database, traced: Traced, report: Callable[[str], None]
) -> None:
    one = traced("hanging", drain_timeout_s=10)
    enqueue(db, "o.sync", count=3000)
    wait_done(db, 3000)
    began = time.monotonic()
    assert one.stop() == exits.OK
    took = time.monotonic() - began
    report(f"stopped {took:.2f} s after SIGTERM although the exporter hangs")
    assert took < within(4, busy_s=9)
    assert "2 s" in one.wait_event("traces.unexported")["reason"]
    assert not one.events("worker.killed")


def test_an_exporter_that_hangs_keeps_a_drain_within_its_deadline(db: Database, traced: Traced) -> None:
    """With a job that uses up the whole time there is: the worker still leaves by itself."""
    one = traced("hanging", drain_timeout_s=1)
    enqueue(db, "o.hold")
    one.wait_event("told.held")
    began = time.monotonic()
    one.stop()
    assert time.monotonic() - began < within(4, busy_s=9)
    assert not one.events("worker.killed")


@pytest.mark.parametrize("provider", ["broken", "broken_later", "broken_at_the_end"])
def test_a_broken_processor_harms_no_job(db: Database, traced: Traced, provider: str) -> None:
    one = traced(provider)
    enqueue(db, "o.plain", count=10)
    enqueue(db, "o.plain_sync", count=10)
    wait_done(db, 20)
    assert one.stop() == exits.OK
    assert len(one.events("traces.broken")) == 1


@pytest.mark.parametrize(
    ("traces", "reason", "remedy"),
    [
        (f"{TRACED}:raising", "no collector is configured", "docs/traces.md"),
        (f"{TRACED}:missing", "missing", "docs/traces.md"),
        ("no_such_module:setup", "no_such_module", "SUPERVISOR_TRACES"),
        ("on", "no exporter 'otlp_proto_grpc'", "exporter"),
    ],
)
def test_traces_that_cannot_be_set_up_are_told_and_the_jobs_run(
    db: Database, service: Traced, traces: str, reason: str, remedy: str
) -> None:
    one = service(handlers=TRACED, processes=1, traces=traces, env={"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    enqueue(db, "o.sync")
    wait_done(db, 1)
    failed = one.wait_event("traces.failed")
    assert reason in failed["reason"]
    assert remedy in failed["remedy"]
    assert one.stop() == exits.OK


def test_a_provider_by_the_usual_variables(db: Database, service: Traced) -> None:
    """The SDK's console exporter prints the spans when the worker leaves."""
    env = {"OTEL_TRACES_EXPORTER": "console", "OTEL_SERVICE_NAME": "shop", "OTEL_BSP_SCHEDULE_DELAY": "60000"}
    one = service(handlers=TRACED, processes=1, traces="on", env=env)
    enqueue(db, "o.sync")
    wait_done(db, 1)
    assert one.stop() == exits.OK
    assert '"name": "run o.sync"' in one.stdout()
    assert '"service.name": "shop"' in one.stdout()


def test_off_is_off(db: Database, service: Traced) -> None:
    one = service(handlers=TRACED, processes=1)
    enqueue(db, "o.async", headers={"traceparent": SENDER})
    wait_done(db, 1)
    assert "trace_id" not in one.wait_event("told.inside")
    assert one.stop() == exits.OK
