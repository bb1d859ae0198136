"""The channel: nobody waits, nothing grows, nothing that counts is lost. Each test runs on asyncio and on uvloop."""

import asyncio
import contextlib
import multiprocessing
import os
import resource
import signal
import socket
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from supervisor.wire.channel import Channel, open_pair, send_blocking
from supervisor.wire.messages import (
    BootFailed,
    CancelJob,
    Drain,
    Drained,
    Hungry,
    Lane,
    Lanes,
    LeaseLost,
    Mark,
    Message,
    More,
    Notice,
    Ready,
    SetBack,
    Stop,
    Wake,
    decode,
    encode,
)
from supervisor.wire.pending import MAX_CONTROL, MAX_SET_BACK
from tests.support.waiting import wait_until, wait_until_async

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop

    def run(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(main, 60))

    return run


class Ends:
    """Both ends in one loop; `heard` is what the worker's end received."""

    def __init__(self, *, listen: bool = True) -> None:
        parent, self.worker_socket = open_pair()
        self.back: list[Message] = []
        self.eofs = 0
        self.parent = Channel(parent, on_message=self.back.append, on_eof=self._eof)
        self.heard: list[Message] = []
        if listen:
            self.listen()

    def listen(self) -> None:
        self.worker = Channel(self.worker_socket, on_message=self.heard.append)

    def _eof(self) -> None:
        self.eofs += 1

    def close(self) -> None:
        self.parent.close()
        if hasattr(self, "worker"):
            self.worker.close()
        self.worker_socket.close()

    async def heard_all(self, fact: Callable[[], bool | Awaitable[bool]]) -> None:
        await wait_until_async(fact, what="the messages arrive")


def test_messages_arrive_in_order_both_ways(run: Run) -> None:
    async def main() -> None:
        ends = Ends()
        sent: list[Message] = [Lanes((Mark("a", 0, 1, 2),)), CancelJob(1, 2), CancelJob(2, 2), Drain(5.0, "x"), Stop()]
        for message in sent:
            assert ends.parent.send(message)
        answers: list[Message] = [Ready(1, 2, ("a",), 3), Hungry(None, False), More(), Drained(1, 2, 3)]
        for message in answers:
            assert ends.worker.send(message)
        await ends.heard_all(lambda: ends.heard == sent and ends.back == answers)
        ends.close()

    run(main())


def test_two_hundred_thousand_wakes_to_a_reader_that_does_not_read(run: Run) -> None:
    """A pipe per worker, filled by wakes, once stopped the whole supervisor."""

    async def main() -> None:
        ends = Ends(listen=False)
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        began = time.perf_counter()
        for number in range(200_000):
            assert ends.parent.send(Wake("default", (SetBack(f"q{number % 50}", 0, 1_000_000 - number),)))
        took = time.perf_counter() - began
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert took < 20  # under tracemalloc; about a second without
        assert peak - before < 1_000_000
        assert ends.parent.backlog
        # What must not wait goes first, and is not lost behind wakes.
        assert ends.parent.send(CancelJob(41, 7))
        assert ends.parent.send(Drain(9.0, "SIGTERM"))

        ends.listen()
        await ends.heard_all(lambda: Drain(9.0, "SIGTERM") in ends.heard and not ends.parent.backlog)
        await ends.heard_all(lambda: isinstance(ends.heard[-1], Wake))
        wakes = [message for message in ends.heard if isinstance(message, Wake)]
        assert len(wakes) < 20
        assert ends.heard.index(CancelJob(41, 7)) < ends.heard.index(Drain(9.0, "SIGTERM")) < len(ends.heard) - 1
        # No set-back is lost: the earliest of each lane arrives.
        earliest: dict[str, int] = {}
        for wake in wakes:
            for queue, _, at_us in wake.set_back:
                earliest[queue] = min(earliest.get(queue, at_us), at_us)
        assert earliest == {f"q{n}": 1_000_000 - (199_950 + n) for n in range(50)}
        assert len(wakes[-1].set_back) == 50
        ends.close()

    run(main())


def fill(ends: Ends) -> None:
    """Until the socket takes no more."""
    number = 0
    while not ends.parent.backlog:
        ends.parent.send(CancelJob(number, 0))
        number += 1


def test_control_goes_before_lanes_and_lanes_before_the_wake(run: Run) -> None:
    """As packets, since a reader sorts the wakes of one turn to the end itself."""

    async def main() -> None:
        ends = Ends(listen=False)
        fill(ends)
        ends.parent.send(Wake("a"))
        ends.parent.send(Lanes((Mark("a", 0, 1, 2),)))
        ends.parent.send(Drain(1.0, "x"))
        ends.parent.send(Stop())
        ends.worker_socket.setblocking(False)
        packets: list[bytes] = []

        def read() -> bool:
            with contextlib.suppress(BlockingIOError):
                while True:
                    packets.append(ends.worker_socket.recv(100_000))
            return not ends.parent.backlog and b'"wake"' in packets[-1]

        await wait_until_async(read, deadline_s=30)
        assert [type(decode(packet[1:])) for packet in packets[-4:]] == [Drain, Stop, Lanes, Wake]
        ends.close()

    run(main())


def test_pending_wakes_become_one(run: Run) -> None:
    async def main() -> None:
        ends = Ends(listen=False)
        fill(ends)
        for wake in (Wake("a", (SetBack("a", 0, 50),)), Wake("a", (SetBack("a", 0, 70), SetBack("b", 1, 10)))):
            ends.parent.send(wake)
        ends.listen()
        await ends.heard_all(lambda: isinstance(ends.heard[-1], Wake) if ends.heard else False)
        assert ends.heard[-1] == Wake("a", (SetBack("a", 0, 50), SetBack("b", 1, 10)))
        ends.close()

    run(main())


def test_too_many_set_backs_become_one_for_all_lanes_that_loses_none(run: Run) -> None:
    async def main() -> None:
        ends = Ends(listen=False)
        fill(ends)
        for number in range(MAX_SET_BACK + 1):
            ends.parent.send(Wake(f"q{number}", (SetBack(f"q{number}", 0, 1_000 + number),)))
        ends.parent.send(Wake("early", (SetBack("early", 0, 7),)))
        ends.parent.send(Wake("late", (SetBack("late", 0, 5_000),)))
        ends.listen()
        await ends.heard_all(lambda: isinstance(ends.heard[-1], Wake) if ends.heard else False)
        assert ends.heard[-1] == Wake(None, (SetBack("early", 0, 7),), all_back_to_us=1_000)
        ends.close()

    run(main())


def test_lanes_keep_their_last_word_and_come_in_pieces(run: Run) -> None:
    async def main() -> None:
        ends = Ends(listen=False)
        fill(ends)
        for turn in range(3):
            ends.parent.send(Lanes(tuple(Mark(f"q{n}", 0, turn, n) for n in range(1_000))))
        ends.parent.send(Lanes(remove=(Lane("q7", 0),)))
        ends.listen()
        await ends.heard_all(lambda: not ends.parent.backlog)
        heard = [message for message in ends.heard if isinstance(message, Lanes)]
        await ends.heard_all(lambda: sum(len(m.lanes) for m in ends.heard if isinstance(m, Lanes)) == 999)
        heard = [message for message in ends.heard if isinstance(message, Lanes)]
        assert len(heard) == 5
        assert {mark.at_us for message in heard for mark in message.lanes} == {2}
        assert [lane for message in heard for lane in message.remove] == [Lane("q7", 0)]
        ends.close()

    run(main())


def test_control_is_bounded_and_says_what_it_does_not_take(run: Run) -> None:
    async def main() -> None:
        ends = Ends(listen=False)
        fill(ends)
        taken = sum(ends.parent.send(CancelJob(number, 1)) for number in range(3 * MAX_CONTROL))
        assert taken == MAX_CONTROL
        assert not ends.parent.send(Notice("x", {}))
        assert ends.parent.send(Drain(1.0, "first"))
        assert ends.parent.send(Drain(2.0, "second"))
        assert ends.parent.send(Stop(now=True))
        ends.listen()
        await ends.heard_all(lambda: bool(ends.heard) and ends.heard[-1] == Stop(now=True))
        assert [message for message in ends.heard if isinstance(message, Drain)] == [Drain(2.0, "second")]
        assert sum(isinstance(m, CancelJob) and m.token == 1 for m in ends.heard) == MAX_CONTROL
        ends.close()

    run(main())


def test_a_long_message_comes_in_pieces_and_arrives_whole(run: Run) -> None:
    async def main() -> None:
        ends = Ends()
        kinds = tuple(f"kind.{'x' * 100}.{n}" for n in range(20_000))
        ends.worker.send(Ready(1, 2, kinds, 3))
        ends.worker.send(BootFailed("€" * 90_000))
        await ends.heard_all(lambda: len(ends.back) == 2)
        assert ends.back == [Ready(1, 2, kinds, 3), BootFailed("€" * 90_000)]
        ends.close()

    run(main())


def test_noise_is_counted_and_what_follows_is_read(run: Run) -> None:
    async def main() -> None:
        ends = Ends()
        for packet in (b".nonsense", b"x", b'.{"t":"of tomorrow"}', b"+half a mess", b".age", b"." + encode(More())):
            ends.worker_socket.send(packet)
        await ends.heard_all(lambda: ends.back == [More()])
        assert (ends.parent.malformed, ends.parent.unknown) == (3, 1)
        ends.close()

    run(main())


def test_an_endless_message_does_not_fill_the_memory(run: Run) -> None:
    async def main() -> None:
        ends = Ends()
        ends.worker_socket.setblocking(False)
        for _ in range(400):
            await wait_until_async(lambda: _try_send(ends.worker_socket, b"+" + b"x" * 32_000))
        assert ends.parent._partial_size <= 9 * 1024 * 1024
        ends.close()

    def _try_send(sock: socket.socket, data: bytes) -> bool:
        try:
            return sock.send(data) > 0
        except BlockingIOError:
            return False

    run(main())


def test_iterating_pauses_the_sender_instead_of_hoarding(run: Run) -> None:
    async def main() -> None:
        parent, worker = open_pair()
        sender, receiver = Channel(parent), Channel(worker)
        for number in range(3_000):
            sender.send(CancelJob(number, 1))
        await asyncio.sleep(0)
        got = []
        async for message in receiver:
            assert len(receiver._inbox) < 500
            got.append(message)
            if len(got) == 3_000:
                sender.close()
        assert got == [CancelJob(number, 1) for number in range(3_000)]
        assert receiver.eof
        receiver.close()

    run(main())


def test_flush_waits_for_the_kernel_to_take_all(run: Run) -> None:
    async def main() -> None:
        ends = Ends(listen=False)
        fill(ends)
        assert not await ends.parent.flush(0.01)
        ends.listen()
        assert await ends.parent.flush(5)
        ends.close()

    run(main())


def test_last_words_are_heard_before_the_eof_though_the_dead_left_mail_unread(run: Run) -> None:
    """The kernel tells a reset first if the dead one had unread messages; taken for the end, it lost `Drained`."""

    async def main() -> None:
        ends = Ends(listen=False)
        for number in range(5):
            ends.parent.send(CancelJob(number, 1))
        assert send_blocking(ends.worker_socket, LeaseLost((1, 2)), 1)
        assert send_blocking(ends.worker_socket, Drained(1, 2, 3), 1)
        ends.worker_socket.close()
        await ends.heard_all(lambda: ends.eofs == 1)
        assert ends.back == [LeaseLost((1, 2)), Drained(1, 2, 3)]
        assert ends.parent.eof
        assert not ends.parent.send(Wake())
        await asyncio.sleep(0)
        assert ends.eofs == 1
        ends.close()

    run(main())


def test_sending_to_the_dead_is_refused_and_not_an_error(run: Run) -> None:
    async def main() -> None:
        ends = Ends(listen=False)
        fill(ends)
        ends.worker_socket.close()
        for _ in range(1_000):
            ends.parent.send(Wake())
        await ends.heard_all(lambda: ends.eofs == 1)
        assert not ends.parent.send(Stop())
        assert not ends.parent.backlog or not await ends.parent.flush(0.01)
        ends.close()
        assert not ends.parent.send(Stop())

    run(main())


def test_lost_leases_are_gathered(run: Run) -> None:
    async def main() -> None:
        ends = Ends(listen=False)
        fill(ends)
        for number in range(5_000):
            ends.parent.send(LeaseLost((number,)))
        ends.listen()
        await ends.heard_all(lambda: any(isinstance(message, LeaseLost) for message in ends.heard))
        [lost] = [message for message in ends.heard if isinstance(message, LeaseLost)]
        assert lost.job_ids == tuple(range(3_000, 5_000))
        ends.close()

    run(main())


def echo(sock: socket.socket) -> None:
    """A worker that answers every wake, in a process of its own."""

    async def main() -> None:
        wakes = 0
        async for message in (channel := Channel(sock)):
            if isinstance(message, Wake):
                wakes += 1
                channel.send(Hungry(None, False))
            elif isinstance(message, Stop):
                channel.send(Drained(wakes, 0, 0))
                await channel.flush(5)
                return

    asyncio.run(main())


def test_a_worker_stopped_by_a_signal_costs_its_parent_nothing(run: Run) -> None:
    async def main() -> None:
        parent_socket, child_socket = open_pair()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                parent_socket.close()
                asyncio._set_running_loop(None)  # the forked copy of this test's loop
                echo(child_socket)
                code = 0
            finally:
                os._exit(code)
        child_socket.close()
        heard: list[Message] = []
        ended = asyncio.Event()
        channel = Channel(parent_socket, on_message=heard.append, on_eof=ended.set)
        channel.send(Wake())
        await wait_until_async(lambda: heard, what="the worker answers")

        os.kill(pid, signal.SIGSTOP)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        for number in range(200_000):
            assert channel.send(Wake("q", (SetBack("q", 0, number),)))
        assert time.perf_counter() - began < 10
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 5_000  # KiB
        assert channel.backlog
        answered = len(heard)
        os.kill(pid, signal.SIGCONT)
        await wait_until_async(lambda: len(heard) > answered and not channel.backlog, deadline_s=5)
        channel.send(Stop())
        await asyncio.wait_for(ended.wait(), 10)
        assert isinstance(heard[-1], Drained)
        assert heard[-1].finished < 600
        channel.close()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    run(main())


def test_a_socket_travels_to_a_process_of_the_fork_server() -> None:
    parent_socket, child_socket = open_pair()
    context = multiprocessing.get_context("forkserver")
    child = context.Process(target=send_blocking, args=(child_socket, BootFailed("no such module"), 5.0))
    child.start()
    child_socket.close()
    heard: list[Message] = []

    async def main() -> None:
        async for message in (channel := Channel(parent_socket)):
            heard.append(message)
        channel.close()

    asyncio.run(asyncio.wait_for(main(), 20))
    assert heard == [BootFailed("no such module")]
    wait_until(lambda: child.exitcode == 0)
