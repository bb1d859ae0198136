"""Kinds that are traced, and the providers that their workers set up: real ones, with exporters of our own.

Exporters write a line of JSON per span to the file TRACES_FILE, which outlives the worker.
"""

import asyncio
import json
import os
import threading
from collections.abc import Sequence

import structlog
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from supervisor import Cancel, Job, handler

tracer = trace.get_tracer("shop")
log = structlog.get_logger("shop")


class FileExporter(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with open(os.environ["TRACES_FILE"], "a", encoding="utf-8") as file:
            for span in spans:
                file.write(json.dumps({**json.loads(span.to_json(indent=None)), "pid": os.getpid()}) + "\n")
        return SpanExportResult.SUCCESS


class HangingExporter(SpanExporter):
    """Never answers: neither an export nor a shutdown."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        threading.Event().wait()
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        threading.Event().wait()


class BrokenProcessor(SpanProcessor):
    def on_start(self, span: object, parent_context: object = None) -> None:
        raise RuntimeError("broken on start")


class BrokenLater(SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("broken on end")


class BrokenAtTheEnd(SpanProcessor):
    def force_flush(self, timeout_millis: int = 30000) -> bool:
        raise RuntimeError("broken at the last flush")

    def shutdown(self) -> None:
        raise RuntimeError("broken at the shutdown")


def to_file() -> TracerProvider:
    """Exports 50 ms after the first span: what a test waits for."""
    provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
    provider.add_span_processor(BatchSpanProcessor(FileExporter(), schedule_delay_millis=50))
    return provider


def late() -> None:
    """Exports at the end only, and sets its provider itself."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(FileExporter(), schedule_delay_millis=3_600_000))
    trace.set_tracer_provider(provider)


def hanging() -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(HangingExporter(), schedule_delay_millis=10))
    return provider


def broken() -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(BrokenProcessor())
    return provider


def broken_later() -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(BrokenLater())
    return provider


def broken_at_the_end() -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(BrokenAtTheEnd())
    return provider


def raising() -> TracerProvider:
    raise RuntimeError("no collector is configured")


@handler("o.async")
async def run_async() -> None:
    with tracer.start_as_current_span("inside"):
        log.info("told.inside")
        await asyncio.to_thread(log.info, "told.thread")


@handler("o.sync")
def run_sync() -> None:
    with tracer.start_as_current_span("inside"):
        log.info("told.inside")


@handler("o.plain")
async def run_plain() -> None:
    log.info("told.plain")


@handler("o.plain_sync")
def run_plain_sync() -> None:
    log.info("told.plain")


@handler("o.fails", backoff=lambda _: 0.01)
async def fail(secret: str) -> None:
    raise ValueError(f"the payload was {secret}")


@handler("o.cancels")
def cancel() -> None:
    raise Cancel("nobody wants it")


@handler("o.slow", timeout=0.1)
async def slow() -> None:
    await asyncio.sleep(60)


@handler("o.hold")
async def hold() -> None:
    log.info("told.held")
    await asyncio.sleep(60)


@handler("o.enqueues")
async def enqueue_another(job: Job) -> None:
    async with job.transaction() as conn:
        await run_async.enqueue(conn)
