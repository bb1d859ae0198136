"""What tracing costs a worker that does not trace: beside what a job costs it anyway, nothing; nor does it need
OpenTelemetry."""

import asyncio
import sys
import time
import timeit
from collections.abc import Iterator
from typing import Any

import pytest

from supervisor.outcome import Outcome
from supervisor.settings import Settings
from supervisor.wire.board import Board
from supervisor.worker import tracing
from supervisor.worker.run import Run
from supervisor.worker.tracing import NO_SPAN, Traces
from tests.unit.test_executor import Returned, claimed, executor


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board.create(64)
    yield made
    made.close()


class Freeing(Returned):
    def __init__(self, board: Board) -> None:
        super().__init__()
        self._board = board

    def returned(self, run: Run) -> None:
        super().returned(run)
        self._board.free(run.entry)


async def test_a_run_that_is_not_traced_costs_what_it_did(board: Board) -> None:
    """Both measured here and now, the best of several."""
    per_job = []
    for _ in range(5):
        sink = Freeing(board)
        slots = executor(board, sink)
        began = time.perf_counter()
        for first in range(0, 400, 8):
            slots.take([claimed(first + n, "x.short") for n in range(8)])
            while slots.running or slots.waiting:
                await asyncio.sleep(0)
        per_job.append((time.perf_counter() - began) / len(sink.runs))
        assert len(sink.runs) == 400
    traces, run, done = Traces(), Run(claimed(1), 0), Outcome.done()

    def untraced() -> None:
        traces.begin(run).end(done)

    extra = min(timeit.repeat(untraced, number=5_000, repeat=5)) / 5_000
    print(f"a job costs the executor {min(per_job) * 1e6:.1f} us, not tracing it {extra * 1e6:.3f} us")
    assert traces.begin(run) is NO_SPAN
    assert extra < min(per_job) / 20


@pytest.mark.parametrize("traces", ["on", "tests.support.traced_handlers:to_file"])
def test_without_the_extra_the_worker_says_what_to_install_and_goes_on(
    traces: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "tests.support.traced_handlers", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)  # as if it were not installed
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(tracing.log, "error", lambda event, **facts: told.append({"event": event, **facts}))
    made = tracing.start(Settings(traces=traces), "shop/0")
    assert made.begin(Run(claimed(1), 0)) is NO_SPAN
    made.stop(0.1)
    [line] = told
    assert line["event"] == "traces.failed"
    assert "opentelemetry" in line["reason"]
    assert "pg-supervisor[otel]" in line["remedy"]
