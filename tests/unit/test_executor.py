"""The slots of a worker, without a database: each job that is taken comes back, once."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from supervisor import Job, handler
from supervisor.db.jobs import ClaimedJob
from supervisor.handler import registry
from supervisor.metrics import metrics
from supervisor.settings import PREFETCH, PREFETCH_SHORT
from supervisor.wire.board import Board, Phase
from supervisor.worker.counts import Counts
from supervisor.worker.executor import Executor
from supervisor.worker.run import Run, TransactionDesk
from tests.support.waiting import wait_until_async


@handler("x.wait")
async def wait() -> None:
    await asyncio.sleep(60)


@handler("x.short")
async def short() -> None:
    await asyncio.sleep(0)


class Returned:
    """What came back, in order."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.made_room = 0

    def returned(self, run: Run) -> None:
        self.runs.append(run)

    def room_made(self) -> None:
        self.made_room += 1

    def events(self) -> list[tuple[int, str]]:
        return [(run.job.id, run.outcome.event if run.outcome else "") for run in self.runs]


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board.create(1024)
    yield made
    made.close()


def executor(board: Board, sink: Returned, slots: int = 4, prefetch: int | None = 4) -> Executor:
    return Executor(
        slots=slots,
        prefetch=prefetch,
        board=board,
        counts=Counts(metrics(), board),
        handlers=registry(),
        desk=cast("TransactionDesk", None),
        sink=sink,
        lease_until=lambda: float("inf"),
    )


def claimed(job_id: int, kind: str = "x.wait", **changed: Any) -> ClaimedJob:
    now = time.time()
    facts: dict[str, Any] = {
        "id": job_id,
        "token": 1,
        "kind": kind,
        "queue": "default",
        "priority": 0,
        "payload": "{}",
        "headers": "{}",
        "attempt": 1,
        "max_attempts": 3,
        "crashes": 0,
        "suspect": False,
        "timeout_s": None,
        "created_at": now,
        "run_at": now,
    }
    return ClaimedJob(**{**facts, **changed})


async def test_a_run_cancelled_before_its_first_step_comes_back(board: Board) -> None:
    """It once kept its slot for good: a task that is cancelled so early never runs a line of its coroutine."""
    sink = Returned()
    slots = executor(board, sink)
    slots.take([claimed(1)])
    assert slots.running[1].stop("cancel")
    await wait_until_async(lambda: sink.runs)
    assert sink.events() == [(1, "failed")]
    assert slots.running == {}
    assert [entry.phase for entry in board.read().entries] == [Phase.RETURNED]


async def test_a_job_that_cannot_be_started_fails_alone(board: Board) -> None:
    sink = Returned()
    slots = executor(board, sink)
    slots.take([claimed(1, timeout_s=float("nan")), claimed(2, "x.short"), claimed(3, "no.such.kind")])
    await wait_until_async(lambda: len(sink.runs) == 3)
    assert sorted(sink.events()) == [(1, "failed"), (2, "done"), (3, "unknown")]
    assert slots.running == {}


async def test_a_timeout_without_end_is_none(board: Board) -> None:
    sink = Returned()
    slots = executor(board, sink)
    slots.take([claimed(1, "x.short", timeout_s=float("inf"))])
    await wait_until_async(lambda: sink.runs)
    assert sink.events() == [(1, "done")]


async def test_a_suspect_that_nobody_knows_leaves_room_for_others(board: Board) -> None:
    sink = Returned()
    slots = executor(board, sink)
    assert await slots.quiet(1.0)
    slots.take_alone(claimed(1, "no.such.kind", suspect=True))
    await slots.ended()
    assert sink.events() == [(1, "unknown")]
    slots.resume()
    assert slots.room() > 0


async def test_becoming_quiet_hands_the_backlog_back_and_starts_nothing(board: Board) -> None:
    sink = Returned()
    slots = executor(board, sink, slots=1)
    slots.take([claimed(1), claimed(2), claimed(3)])
    quiet = asyncio.ensure_future(slots.quiet(5.0))
    await wait_until_async(lambda: len(sink.runs) == 2)
    assert sink.events() == [(2, "released"), (3, "released")]
    assert slots.room() == 0
    slots.take([claimed(4)])  # its claim was under way
    assert sink.events()[2:] == [(4, "released")]
    slots.running[1].stop("cancel")
    assert await quiet
    slots.take_alone(claimed(5, "x.short", suspect=True))
    await slots.ended()
    slots.resume()
    assert sink.events()[3:] == [(1, "failed"), (5, "done")]
    assert slots.room() > 0


async def test_a_worker_that_does_not_become_quiet_goes_on(board: Board) -> None:
    sink = Returned()
    slots = executor(board, sink)
    slots.take([claimed(1)])
    assert not await slots.quiet(0.01)
    slots.resume()
    slots.take([claimed(2, "x.short")])
    await wait_until_async(lambda: sink.events() == [(2, "done")])
    assert list(slots.running) == [1]


async def test_a_suspect_that_arrives_in_a_stop_is_given_back(board: Board) -> None:
    sink = Returned()
    slots = executor(board, sink)
    assert await slots.quiet(1.0)
    slots.stop_starting()
    slots.take_alone(claimed(1, suspect=True))
    assert sink.events() == [(1, "released")]


@handler("x.thread")
def in_thread(job: Job) -> None:
    threads_ran.append(job.id)


threads_ran: list[int] = []


async def test_a_job_for_which_there_is_no_thread_is_given_back_and_never_runs(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once was put down as failed, stayed queued for a thread, and ran when there was one: beside its second run,
    and its end was written over another job's on the scoreboard."""

    def refused(_: object) -> None:
        raise RuntimeError("can't start new thread")

    threads_ran.clear()
    sink = Returned()
    slots = executor(board, sink)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        slots.take([claimed(1, "x.thread"), claimed(2, "x.thread")])
        assert sink.events() == [(1, "released"), (2, "released")]
        assert not any(run.started for run in sink.runs), "neither counts as started"
        assert slots.room() == 0, "nothing is claimed for a moment"
    await wait_until_async(lambda: sink.made_room, 5)
    assert slots.room() > 0
    slots.take([claimed(3, "x.thread")])
    await wait_until_async(lambda: (3, "done") in sink.events(), 5)
    slots.take([claimed(4, "x.thread"), claimed(5, "x.thread")])
    await wait_until_async(lambda: len(sink.runs) == 5, 5)
    assert threads_ran == [3, 4, 5]


async def test_what_fails_at_a_start_fails_before_the_handler_is_called(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once came after the call had been handed to a thread: the job was put down as failed while it ran."""

    def refused(*_: object) -> None:
        raise OSError("no space left on device")

    threads_ran.clear()
    sink = Returned()
    slots = executor(board, sink)
    with monkeypatch.context() as patch:
        patch.setattr(Counts, "started", refused)
        slots.take([claimed(1, "x.thread"), claimed(2, "x.short")])
    assert sink.events() == [(1, "failed"), (2, "failed")]
    slots.take([claimed(3, "x.thread")])
    await wait_until_async(lambda: (3, "done") in sink.events(), 5)
    assert threads_ran == [3]
    assert len(sink.runs) == 3


async def test_jobs_of_limited_queues_start_first_and_are_no_more_than_there_are_hands(board: Board) -> None:
    """Such a job has a place that others wait for from its claim on: none is to wait in a backlog."""
    back = Returned()
    slots = executor(board, back, slots=3)
    assert slots.hands() == 3
    slots.take([claimed(1, "x.wait"), claimed(2, "x.wait")])
    assert slots.hands() == 1
    slots.take(
        [claimed(number, "x.wait") for number in (3, 4, 5)] + [claimed(6, "x.wait", queue="few")], frozenset({"few"})
    )
    assert sorted(slots.running) == [1, 2, 6]
    assert slots.hands() == 0, "what runs is long, as far as is known"
    slots.stop_starting()
    for run in list(slots.running.values()):
        run.stop("drain")
    await wait_until_async(lambda: not slots.running)


async def test_a_paused_queues_jobs_go_back_and_others_stay(board: Board) -> None:
    back = Returned()
    slots = executor(board, back, slots=1)
    slots.take(
        [claimed(1, "x.wait"), claimed(2, "x.wait", queue="q"), claimed(3, "x.wait"), claimed(4, "x.wait", queue="q")]
    )
    slots.hand_back("q")
    assert back.events() == [(2, "released"), (4, "released")]
    assert slots.waiting == 1
    slots.stop_starting()
    for run in list(slots.running.values()):
        run.stop("drain")
    await wait_until_async(lambda: not slots.running)


async def test_short_jobs_are_claimed_in_large_batches_and_the_excess_goes_back_when_they_become_long(
    board: Board,
) -> None:
    sink = Returned()
    slots = executor(board, sink, prefetch=None)
    assert slots.room() == 4 + PREFETCH
    for number in range(40):
        slots.take([claimed(4 * number + n, "x.short") for n in range(4)])
        await wait_until_async(lambda: not slots.running)
    assert 4 + 2 * PREFETCH < slots.room() <= 4 + PREFETCH_SHORT
    sink.runs.clear()
    slots.take([claimed(1000 + n, "x.wait") for n in range(4 + PREFETCH_SHORT)])
    assert slots.waiting == PREFETCH_SHORT
    # A few that were long: what waits beyond twice the usual number goes back, from the end of the line.
    for run in list(slots.running.values()):
        run.started -= 1.0
        run.stop("cancel")
    await wait_until_async(lambda: len(sink.runs) == 4)
    slots.unstick()
    back = [job_id for job_id, event in sink.events() if event == "released"]
    assert slots.waiting <= 2 * PREFETCH
    assert len(back) + slots.waiting == PREFETCH_SHORT - 4
    assert min(back) > max(run.job.id for run in slots.held())
    slots.stop_starting()
    slots.interrupt()
    await wait_until_async(lambda: not slots.running)


async def test_a_number_that_was_set_is_the_most_that_waits(board: Board) -> None:
    slots = executor(board, Returned(), prefetch=4)
    for number in range(40):
        slots.take([claimed(4 * number + n, "x.short") for n in range(4)])
        await wait_until_async(lambda: not slots.running)
    assert slots.room() == 4 + 4
