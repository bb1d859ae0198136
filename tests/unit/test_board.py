"""The scoreboard: what a dead worker leaves is what it did, wherever death came."""

import contextlib
import math
import multiprocessing
import os
import pickle
import random
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from supervisor.job import Event
from supervisor.wire.board import Board, BoardFull, Phase, WorkerState
from supervisor.wire.page import ENTRY, EVENTS, FAULT, HEADER
from tests.support.waiting import wait_until


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board.create(16)
    yield board
    board.close()


def test_the_life_of_a_job_on_the_board(board: Board) -> None:
    before = time.monotonic_ns()
    index = board.claim(41, 7, "email.welcome", suspect=True)
    [entry] = board.read().entries
    assert (entry.index, entry.job_id, entry.token, entry.kind) == (index, 41, 7, "email.welcome")
    assert (entry.phase, entry.suspect, entry.event, entry.torn) == (Phase.CLAIMED, True, "", False)
    assert before <= entry.claimed_ns <= time.monotonic_ns()
    assert entry.started_ns == entry.deadline_ns == 0

    board.start(index, deadline_ns=123)
    [entry] = board.read().entries
    assert (entry.phase, entry.deadline_ns) == (Phase.STARTED, 123)
    assert entry.started_ns >= entry.claimed_ns

    board.return_(index, "failed", "ValueError: no", 2.5, "cancel")
    [entry] = board.read().entries
    assert (entry.phase, entry.event, entry.error, entry.delay) == (Phase.RETURNED, "failed", "ValueError: no", 2.5)
    assert entry.reason == "cancel"

    board.free(index)
    assert board.read().entries == []
    assert board.room == 16


def test_an_entry_keeps_nothing_of_the_job_before(board: Board) -> None:
    first = board.claim(1, 1, "a.long.kind", suspect=True)
    board.start(first, 99)
    board.return_(first, "failed", "an error", 1.0, "payload")
    board.free(first)
    again = board.claim(2, 5, "b")
    assert again == first
    board.start(again)
    [entry] = board.read().entries
    assert (entry.kind, entry.suspect, entry.deadline_ns, entry.event, entry.error) == ("b", False, 0, "", None)
    board.return_(again, "done")
    [entry] = board.read().entries
    assert (entry.event, entry.error, entry.delay, entry.reason) == ("done", None, None, None)


def test_long_texts_are_cut_between_characters(board: Board) -> None:
    index = board.claim(1, 1, "é" * 40)
    board.start(index)
    board.return_(index, "failed", "x" + "€" * 100 + "\ud800")
    [entry] = board.read().entries
    assert entry.kind == "é" * 24
    assert entry.error == "x" + "€" * 42


def test_events_are_the_words_that_settle_a_run() -> None:
    assert set(EVENTS[1:]) == {
        "done", "failed", "dead", "snoozed", "released", "interrupted", "crashed", "suspect", "unknown",
    }  # fmt: skip
    assert {event.value for event in Event} >= {"done", "failed", "snoozed", "released", "crashed", "suspect"}


def test_an_unknown_event_changes_nothing(board: Board) -> None:
    index = board.claim(1, 1, "a")
    board.start(index)
    with pytest.raises(KeyError):
        board.return_(index, "vanished")
    [entry] = board.read().entries
    assert (entry.phase, entry.torn) == (Phase.STARTED, False)


def test_a_full_board_is_an_error_and_not_an_overwrite(board: Board) -> None:
    for number in range(16):
        board.claim(number, 1, "a")
    with pytest.raises(BoardFull, match="16 entries"):
        board.claim(99, 1, "a")
    assert [entry.job_id for entry in board.read().entries] == list(range(16))


def test_overdue_jobs_and_the_mark_of_the_killer(board: Board) -> None:
    entries = [board.claim(number, 1, "a") for number in range(3)]
    board.start(entries[0], deadline_ns=1_000)
    board.start(entries[1], deadline_ns=0)
    board.start(entries[2], deadline_ns=5_000)
    assert [entry.job_id for entry in board.overdue(999)] == []
    assert [entry.job_id for entry in board.overdue(1_000)] == [0]
    assert [entry.job_id for entry in board.overdue(9_000)] == [0, 2]
    board.mark_killed(entries[0])
    assert [entry.killed for entry in board.read().entries] == [True, False, False]
    board.return_(entries[2], "done")
    assert [entry.job_id for entry in board.overdue(9_000)] == [0]


def test_header_words(board: Board) -> None:
    board.set_header(pid=812, session=-5, state=WorkerState.DRAINING, busy=3, running=2, next_session=2**62, ended=9)
    board.tick()
    board.set_lease_until(2**63)
    board.set_flags(5)
    seen = board.read()
    assert (seen.pid, seen.session, seen.state, seen.busy, seen.running) == (812, -5, WorkerState.DRAINING, 3, 2)
    assert (seen.next_session, seen.ended) == (2**62, 9)
    assert seen.tick_ns <= time.monotonic_ns()
    assert (board.lease_until_ns, board.flags) == (2**63, 5)


def test_it_travels_to_a_process_of_the_fork_server_and_nowhere_else() -> None:
    board = Board.create(8)
    context = multiprocessing.get_context("forkserver")
    child = context.Process(target=Board.claim, args=(board, 41, 7, "email.welcome"))
    child.start()
    board.close_fd()
    child.join(20)
    assert child.exitcode == 0
    [entry] = board.read().entries
    assert (entry.job_id, entry.token, entry.kind, entry.phase) == (41, 7, "email.welcome", Phase.CLAIMED)
    with pytest.raises(TypeError):
        pickle.dumps(board)
    board.close()


def test_a_worker_cannot_take_the_memory_away(board: Board) -> None:
    """A truncated file under a mapping is a SIGBUS for its reader: the parent."""
    for size in (0, HEADER, 10 * (HEADER + 16 * ENTRY)):
        with pytest.raises(OSError):
            os.ftruncate(board._fd, size)
    assert board.read().entries == []


def test_scribbled_memory_reads_as_nonsense_and_not_as_an_error(board: Board) -> None:
    generator = random.Random(7)
    for _ in range(200):
        board._bytes[HEADER:] = generator.randbytes(16 * ENTRY + FAULT)
        board._bytes[64:HEADER] = generator.randbytes(HEADER - 64)
        seen = board.read()
        board.overdue(2**62)
        board.fault()
        for entry in seen.entries:
            assert entry.phase is not Phase.FREE
            assert entry.delay is None or math.isfinite(entry.delay)
            if entry.phase is Phase.RETURNED:
                assert entry.event in EVENTS


def test_last_words_are_found_and_cannot_grow_the_page(board: Board) -> None:
    """A fatal error's traceback once went to the log's pipe, and a full one held up the death."""
    assert board.fault() == ""
    os.write(board.fault_fd(), b"Fatal Python error: Segmentation fault\n")
    assert board.fault() == "Fatal Python error: Segmentation fault"
    assert board.read().entries == []
    size = os.fstat(board._fd).st_size
    with pytest.raises(PermissionError):
        for _ in range(3):  # the first ones are cut short at the end
            os.write(board._fd, bytes(FAULT))
    assert os.fstat(board._fd).st_size == size


def check(board: Board, *, dead: bool = False) -> None:
    """Each entry's facts belong together: a job n has token 3n, kind k.n, and an error that says n."""
    for entry in board.read().entries:
        if entry.torn and not dead:
            continue
        n = entry.job_id
        assert entry.token == 3 * n
        assert entry.kind == f"k.{n}"
        assert entry.suspect == (n % 2 == 0)
        if entry.phase >= Phase.STARTED and not entry.torn:
            assert entry.deadline_ns == 7 * n
            assert entry.started_ns >= entry.claimed_ns > 0
        if entry.phase is Phase.RETURNED:
            assert entry.event == ("done" if n % 3 else "failed")
            assert entry.error == (None if n % 3 else f"error {n}")


def work(board: Board, first: int, step: int) -> None:
    n = first
    while True:
        index = board.claim(n, 3 * n, f"k.{n}", suspect=n % 2 == 0)
        board.start(index, 7 * n)
        board.return_(index, "done" if n % 3 else "failed", None if n % 3 else f"error {n}")
        board.free(index)
        n += step


def test_a_worker_killed_in_the_middle_of_writing_leaves_whole_entries() -> None:
    """200 deaths at random points of a worker that does nothing but write."""
    generator = random.Random(1)
    phases: dict[str, int] = {}
    for _ in range(200):
        board = Board.create(4)
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                work(board, 1, 1)
            os._exit(1)
        wait_until(lambda board=board: board._words[HEADER >> 3], what="the worker writes")  # type: ignore[misc]
        spin = time.perf_counter_ns() + generator.randrange(2_000_000)
        while time.perf_counter_ns() < spin:
            check(board)
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        check(board, dead=True)
        for entry in board.read().entries:
            name = entry.phase.name + (" torn" if entry.torn else "")
            phases[name] = phases.get(name, 0) + 1
        board.close()
    assert len(phases) >= 3, phases  # the deaths did come at different points


def test_a_torn_entry_reads_as_the_earlier_phase(board: Board) -> None:
    """What a death between two stores leaves, made by hand: sequence odd, fields new, phase old."""
    index = board.claim(5, 15, "k.5")
    offset = HEADER + index * ENTRY
    board._words[offset >> 3] += 1
    [entry] = board.read().entries
    assert (entry.phase, entry.torn, entry.started_ns) == (Phase.CLAIMED, True, 0)
    board._phases[index] = Phase.STARTED
    board._bytes[offset + 64] = EVENTS.index("done")  # the first part of return_
    [entry] = board.read().entries
    assert (entry.phase, entry.torn, entry.event) == (Phase.STARTED, True, "")
    board._phases[index] = Phase.FREE  # claimed half way: not there yet
    assert board.read().entries == []


def test_several_threads_write_their_own_entries_while_the_parent_reads(board: Board) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def run(first: int) -> None:
        n = first
        try:
            while not stop.is_set():
                index = board.claim(n, 3 * n, f"k.{n}", suspect=n % 2 == 0)
                board.start(index, 7 * n)
                board.return_(index, "done" if n % 3 else "failed", None if n % 3 else f"error {n}")
                board.free(index)
                n += 4
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(first,)) for first in range(1, 5)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 1
    while time.monotonic() < end:
        check(board)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert board.read().entries == []
    assert board.room == 16


def test_a_jobs_whole_life_costs_microseconds(board: Board) -> None:
    """Four writes per job; ten times what is measured, since the machine may be busy."""

    def life(times: int) -> float:
        began = time.perf_counter()
        for number in range(times):
            index = board.claim(number, number, "email.welcome")
            board.start(index, 5)
            board.return_(index, "done")
            board.free(index)
        return (time.perf_counter() - began) / times

    assert min(life(5_000) for _ in range(5)) < 20e-6
