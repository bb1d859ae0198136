"""What tracing costs a worker that does not trace: beside what a job costs it anyway, nothing."""

import asyncio
import time
import timeit
from collections.abc import Iterator

import pytest

from supervisor.outcome import Outcome
from supervisor.wire.board import Board
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
