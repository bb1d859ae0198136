"""The spans of runs, and the provider that exports them: OpenTelemetry, the extra `otel`.

    off               no span is made                                           the default
    on                a provider by the OTEL_* variables, made in each worker
    module:function   called in each worker; sets a provider up, or returns one

    begin --current in the handler--> raised? --> end          per run
    start (after the fork)  ....................  stop (at the worker's end, within a bound)

A run's span begins a trace of its own and is *linked* to the span that enqueued the job: the job may run hours
later and again after each failure, and a trace that stays open until then is one that no backend can show. With
SUPERVISOR_TRACE_RELATION=parent it is that span's child instead.

Always true: exporters and their threads are made after the fork, in the process that uses them. What the
provider, a sampler or a header does wrong never harms the job. No span holds a payload or an error's text. A
span ends after its run's end is on the scoreboard. Leaving waits for exporters no longer than it was told to.

Elsewhere: the spans of enqueueing, names of attributes (trace.py).
"""

from __future__ import annotations

import importlib
import json
import os
import threading
import traceback
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from supervisor import trace
from supervisor.log import Repeats, add_source, get_logger
from supervisor.outcome import Outcome
from supervisor.release import VERSION
from supervisor.settings import Settings
from supervisor.worker.run import Run

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

#: What the fork server imports, so that each worker need not.
LIBRARIES: Final = ("opentelemetry.sdk.trace.export",)
_MAX_FRAMES: Final = 20
_MAX_HEADER: Final = 512  # characters; the W3C's recommendation knows no longer ones
_EXPORTERS: Final = "opentelemetry_traces_exporter"
_OTLP: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}

log = get_logger("worker")


class RunSpan:
    """One run's span. This one is none."""

    __slots__ = ()

    def raised(self, error: BaseException) -> None:
        """The handler has raised *error*."""

    def end(self, outcome: Outcome) -> None:
        """The run has ended so."""


NO_SPAN: Final = RunSpan()


class Traces:
    """What a worker traces. This one traces nothing."""

    def begin(self, run: Run) -> RunSpan:
        """A span for *run*, which starts now; current from here on in this context."""
        return NO_SPAN

    def stop(self, patience_s: float) -> None:
        """Export what is left, for *patience_s* at most; what is not exported by then is lost."""


def start(settings: Settings, worker: str) -> Traces:
    """Set up tracing as the settings say, in the process that runs the jobs. What is wrong is told in the log."""
    if settings.traces == "off":
        return Traces()
    try:
        provider = _by_environment(worker) if settings.traces == "on" else _by_function(settings.traces)
    except ImportError as error:
        reason = str(error)
        remedy = "pip install pg-supervisor[otel] and an exporter, or check the name"
        if error.name and not error.name.startswith("opentelemetry"):
            remedy = "check SUPERVISOR_TRACES=module:function"
    except Exception as error:  # of the user's function, or of an exporter
        reason, remedy = repr(error), "see docs/traces.md"
    else:
        add_source(_current_ids)
        return _Traces(provider, worker, settings.trace_relation)
    log.error("traces.failed", traces=settings.traces, reason=reason, did="went on without traces", remedy=remedy)
    return Traces()


def _by_function(name: str) -> TracerProvider:
    from opentelemetry import trace as api

    module, _, attribute = name.partition(":")
    made = getattr(importlib.import_module(module), attribute)()
    if made is not None:
        api.set_tracer_provider(made)
    found: Any = api.get_tracer_provider()
    if isinstance(found, api.ProxyTracerProvider):
        raise RuntimeError(f"{name} neither returned a tracer provider nor set one up")
    return found  # type: ignore[no-any-return]


def _by_environment(worker: str) -> TracerProvider:
    """A provider by OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER, OTEL_BSP_*, OTEL_EXPORTER_*."""
    from opentelemetry import trace as api
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    own = {"service.instance.id": worker}
    if str(Resource.create().attributes["service.name"]).startswith("unknown_service"):
        own["service.name"] = trace.SCOPE
    provider = TracerProvider(resource=Resource.create(own))
    for exporter in _exporters():
        provider.add_span_processor(BatchSpanProcessor(exporter))
    api.set_tracer_provider(provider)
    return provider


def _exporters() -> list[Any]:
    names = [part.strip() for part in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(",") if part.strip()]
    known = {entry.name: entry for entry in entry_points(group=_EXPORTERS)}
    made = []
    for name in names:
        if name == "none":
            continue
        if name == "otlp":
            protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
                "OTEL_EXPORTER_OTLP_PROTOCOL"
            )
            wanted = [_OTLP.get(protocol, protocol)] if protocol else list(_OTLP.values())
            name = next((found for found in wanted if found in known), wanted[0])
        if name not in known:
            raise ModuleNotFoundError(
                f"no exporter {name!r} (OTEL_TRACES_EXPORTER) is installed", name="opentelemetry.exporter"
            )
        made.append(known[name].load()())
    return made


def _current_ids() -> Mapping[str, Any]:
    """The current span's ids, for log lines."""
    from opentelemetry.trace import get_current_span

    context = get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


class _Traces(Traces):
    def __init__(self, provider: TracerProvider, worker: str, relation: str) -> None:
        self._provider = provider
        self._tracer: Tracer = provider.get_tracer(trace.SCOPE, VERSION)
        self._worker = worker
        self._relation = relation
        self._repeats = Repeats(60.0)

    def begin(self, run: Run) -> RunSpan:
        try:
            return _RunSpan(self._start(run), self._failed)
        except Exception as error:
            self._failed(error)
            return NO_SPAN

    def _start(self, run: Run) -> Span:
        from opentelemetry import context as contexts
        from opentelemetry import trace as api

        job = run.job
        sender = _sender(job.headers)
        came_from = api.get_current_span(sender).get_span_context()
        span = self._tracer.start_span(
            f"run {job.kind}",
            context=sender if self._relation == "parent" else contexts.Context(),
            kind=api.SpanKind.CONSUMER,
            links=[api.Link(came_from)] if came_from.is_valid and self._relation == "link" else [],
            attributes={
                trace.MESSAGING_SYSTEM: trace.SYSTEM,
                trace.OPERATION_NAME: "run",
                trace.OPERATION_TYPE: "process",
                trace.DESTINATION: job.queue,
                trace.MESSAGE_ID: str(job.id),
                trace.CLIENT_ID: self._worker,
                trace.KIND: job.kind,
                trace.ATTEMPT: job.attempt,
                trace.MAX_ATTEMPTS: job.max_attempts,
                trace.CRASHES: job.crashes,
            },
        )
        # For good: each run has a context of its own, and it ends with the run.
        contexts.attach(api.set_span_in_context(span, contexts.Context()))
        return span

    def _failed(self, error: Exception) -> None:
        self._tell(error, "went on; this run has no whole span")

    def _tell(self, error: Exception, did: str) -> None:
        self._repeats.tell(log.warning, "traces.broken", reason=repr(error), did=did)

    def stop(self, patience_s: float) -> None:
        # An exporter that does not answer answers a shutdown no better: both in a thread that may be left behind.
        def export() -> None:
            for end in (lambda: self._provider.force_flush(int(patience_s * 1000)), self._provider.shutdown):
                try:
                    end()
                except Exception as error:
                    self._tell(error, "left; the last spans of this worker may be lost")

        thread = threading.Thread(target=export, name="traces-flush", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread to be had
            log.warning("traces.unexported", reason=str(error))
            return
        thread.join(max(0.0, patience_s))
        if thread.is_alive():
            log.warning(
                "traces.unexported",
                reason=f"the exporter had not finished after {patience_s:g} s",
                did="left; the last spans of this worker are lost",
            )


class _RunSpan(RunSpan):
    __slots__ = ("_error", "_failed", "_span")

    def __init__(self, span: Span, failed: Any) -> None:
        self._span = span
        self._failed = failed
        self._error: str | None = None

    def raised(self, error: BaseException) -> None:
        try:
            if self._span.is_recording():
                self._error = trace.name_of(error)
                frames = traceback.format_tb(error.__traceback__, limit=-_MAX_FRAMES)
                # Without its message, which may quote the payload.
                self._span.add_event(
                    "exception", {"exception.type": self._error, "exception.stacktrace": "".join(frames)}
                )
        except Exception as broken:
            self._failed(broken)

    def end(self, outcome: Outcome) -> None:
        from opentelemetry.trace import StatusCode

        try:
            self._span.set_attribute(trace.OUTCOME, outcome.event)
            if outcome.event in ("failed", "dead"):
                own = outcome.reason not in (None, "error")
                self._span.set_attribute(trace.ERROR_TYPE, str(outcome.reason if own else self._error or "error"))
                self._span.set_status(StatusCode.ERROR)
            self._span.end()
        except Exception as broken:
            self._failed(broken)


def _sender(headers: str) -> Any:
    """The trace context that a job's headers carry; an empty one where they carry none, or a bad one."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if '"traceparent"' not in headers:
        return Context()
    try:
        given = json.loads(headers)
        carrier = {
            name: given[name]
            for name in ("traceparent", "tracestate")
            if isinstance(given.get(name), str) and len(given[name]) <= _MAX_HEADER
        }
        return TraceContextTextMapPropagator().extract(carrier, Context())
    except Exception:  # whatever somebody has written there
        return Context()
