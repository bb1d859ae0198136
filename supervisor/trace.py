"""Spans for enqueueing, where the caller's process traces: OpenTelemetry, the extra `otel`.

    enqueue(...) --span--> headers {"traceparent": ..., "tracestate": ...} --> job --> run's span, linked

The trace context travels in the job's headers by the W3C names, so what plain SQL enqueues with such headers is
linked too. A caller's own headers by these names are left as they are.

Always true: without OpenTelemetry, or in a process that has no provider and is in no trace, nothing is imported,
nothing is sent along, and an enqueue costs a look into a dictionary. A span never fails the call it is about. No
span holds a payload, a unique key or an error's text: only names, ids and the error's type.

Elsewhere: the spans of runs (worker/tracing.py); what users read (docs/traces.md).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from supervisor.release import VERSION

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from supervisor.newjob import NewJob

SCOPE: Final = "pg-supervisor"
SYSTEM: Final = "pg_supervisor"

# Names of the semantic conventions for messaging; those that begin with `supervisor.` are ours.
MESSAGING_SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
MESSAGE_ID: Final = "messaging.message.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
CLIENT_ID: Final = "messaging.client.id"
ERROR_TYPE: Final = "error.type"
KIND: Final = "supervisor.job.kind"
CREATED: Final = "supervisor.job.created"
ATTEMPT: Final = "supervisor.job.attempt"
MAX_ATTEMPTS: Final = "supervisor.job.max_attempts"
CRASHES: Final = "supervisor.job.crashes"
OUTCOME: Final = "supervisor.job.outcome"

_tracer_of: tuple[object, Tracer] | None = None


class Sending:
    """One enqueue on its way. This one traces nothing.

    >>> with sending(jobs) as span:
    ...     answers = send(span.carried(jobs))
    ...     span.stored(answers)
    """

    def __enter__(self) -> Sending:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def carried(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        """*jobs* with the trace context in their headers."""
        return jobs

    def stored(self, answers: Sequence[tuple[int, bool]]) -> None:
        """The database has them: (id, created) of each."""


_UNTRACED: Final = Sending()


def sending(jobs: Sequence[NewJob], count: int = 1) -> Sending:
    """A span around the enqueueing of *count* jobs, current while it lasts; none in a process that traces nothing.

    Args:
        jobs: Some of them, with every kind and queue that there is.
        count: How many there are.
    """
    api = sys.modules.get("opentelemetry.trace")  # whoever has set up a provider has imported it
    if api is None or not jobs:
        return _UNTRACED
    try:
        tracer = _tracer(api)
        return _UNTRACED if tracer is None else _TracedSending(api, tracer, jobs, count)
    except Exception:  # a provider's own: the jobs matter more
        return _UNTRACED


def _tracer(api: Any) -> Tracer | None:
    """The provider's tracer; None where there is no provider and no trace to be part of."""
    global _tracer_of
    provider = api.get_tracer_provider()
    if isinstance(provider, api.ProxyTracerProvider) and not api.get_current_span().get_span_context().is_valid:
        return None
    if _tracer_of is None or _tracer_of[0] is not provider:
        _tracer_of = (provider, provider.get_tracer(SCOPE, VERSION))
    return _tracer_of[1]


class _TracedSending(Sending):
    def __init__(self, api: Any, tracer: Tracer, jobs: Sequence[NewJob], count: int) -> None:
        self._api = api
        kinds, queues = {job.kind for job in jobs}, {job.queue for job in jobs}
        attributes: dict[str, str | int] = {
            MESSAGING_SYSTEM: SYSTEM,
            OPERATION_NAME: "enqueue",
            OPERATION_TYPE: "send",
        }
        if len(queues) == 1:
            attributes[DESTINATION] = next(iter(queues))
        if len(kinds) == 1:
            attributes[KIND] = next(iter(kinds))
        if count > 1:
            attributes[BATCH_COUNT] = count
        name = f"enqueue {next(iter(kinds))}" if len(kinds) == 1 else "enqueue"
        self._span: Span = tracer.start_span(name, kind=api.SpanKind.PRODUCER, attributes=attributes)
        self._current: Any = None

    def __enter__(self) -> Sending:
        self._current = self._api.use_span(
            self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False
        )
        self._current.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._current.__exit__(None, None, None)
        try:
            if error is not None:
                self._span.set_attribute(ERROR_TYPE, name_of(error))
                self._span.set_status(self._api.StatusCode.ERROR)
            self._span.end()
        except Exception:  # a span processor's own: the enqueue is done
            return

    def carried(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        carrier = _carrier()
        return [job.with_headers(carrier) for job in jobs] if carrier else jobs

    def stored(self, answers: Sequence[tuple[int, bool]]) -> None:
        if len(answers) == 1:
            self._span.set_attribute(MESSAGE_ID, str(answers[0][0]))
            self._span.set_attribute(CREATED, answers[0][1])


def current_context() -> Mapping[str, str]:
    """The trace that this code runs in, by the W3C names; empty in a process that traces nothing."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return {}
    try:
        return _carrier() if api.get_current_span().get_span_context().is_valid else {}
    except Exception:  # a provider's own: the event matters more
        return {}


def _carrier() -> Mapping[str, str]:
    """The current trace context by its W3C names."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier


def name_of(error: BaseException) -> str:
    """An error's type, as spans name it."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
