"""Who is woken when: notices, due times and answers replayed without processes."""

import asyncio
import json
from collections.abc import Callable

from supervisor.clock import DbClock
from supervisor.parent.waker import Waker
from supervisor.wire.messages import SetBack, Wake
from tests.support.sizes import within

DB_NOW = 1_800_000_000.0


class FakeWorker:
    def __init__(self, load: int = 0, *, hungry: bool = True) -> None:
        self.hungry = hungry
        self.woken_at = 0.0
        self.load = load
        self.wakes: list[Wake] = []

    def wake(self, message: Wake) -> None:
        self.wakes.append(message)


def clock() -> DbClock:
    now: Callable[[], float] = lambda: asyncio.get_running_loop().time()  # noqa: E731
    return DbClock(now=now, wall=lambda: DB_NOW)


def waker(*workers: FakeWorker) -> tuple[Waker, list[tuple[int, int, int, float | None]]]:
    cancelled: list[tuple[int, int, int, float | None]] = []
    made = Waker(
        workers=lambda: workers,
        clock=clock(),
        on_cancel=lambda *what: cancelled.append(what),
        on_queue=lambda queue, priorities: [(queue, priority) for priority in priorities],
        on_gates=gates.append,
        on_settings=lambda *told: settings.append(told),
        paused=lambda queue: queue == "paused",
    )
    return made, cancelled


settings: list[tuple[str, dict[str, object]]] = []


gates: list[float] = []


def notice(at: float, queue: str = "q", priorities: tuple[int, ...] = (0,)) -> str:
    return json.dumps({"queue": queue, "priorities": priorities, "at": at})


async def until(fact: Callable[[], bool], deadline_s: float = 5.0) -> None:
    async with asyncio.timeout(deadline_s):
        while not fact():
            await asyncio.sleep(0.005)


async def test_one_notice_wakes_one_worker_the_least_busy() -> None:
    busy, idle = FakeWorker(3), FakeWorker(1)
    made, _ = waker(busy, idle)
    made.notice(notice(DB_NOW))
    assert (len(busy.wakes), len(idle.wakes)) == (0, 1)
    assert not idle.hungry
    made.close()


async def test_a_notice_that_meets_no_hungry_worker_is_kept_for_the_next() -> None:
    """A job committed just while the only worker's empty claim was under way starts at once (B25)."""
    worker = FakeWorker(hungry=False)
    made, _ = waker(worker)
    made.notice(notice(DB_NOW))
    assert worker.wakes == []
    made.hungry(worker, None)
    assert len(worker.wakes) == 1
    made.hungry(worker, None)
    assert len(worker.wakes) == 1
    made.close()


async def test_a_late_commit_says_how_far_to_look_back() -> None:
    worker = FakeWorker()
    made, _ = waker(worker)
    made.notice(notice(DB_NOW - 30, priorities=(0, 7)))
    assert worker.wakes[0].set_back == (
        SetBack("q", 0, int((DB_NOW - 30) * 1e6) - 1),
        SetBack("q", 7, int((DB_NOW - 30) * 1e6) - 1),
    )
    made.close()


async def test_a_later_job_wakes_when_it_is_due_and_not_before() -> None:
    worker = FakeWorker()
    made, _ = waker(worker)
    loop = asyncio.get_running_loop()
    started = loop.time()
    made.notice(notice(DB_NOW + 0.2))
    assert worker.wakes == []
    await until(lambda: bool(worker.wakes))
    assert loop.time() - started >= 0.19
    made.close()


async def test_a_worker_that_does_not_answer_does_not_keep_the_job_waiting() -> None:
    """A stopped worker looks hungry for ever (B03): another one is woken after 100 ms."""
    stopped, other = FakeWorker(0), FakeWorker(1)
    made, _ = waker(stopped, other)
    made.notice(notice(DB_NOW))
    assert len(stopped.wakes) == 1
    await until(lambda: len(other.wakes) == 1)
    made.close()


async def test_a_full_claim_wakes_another_and_never_the_same() -> None:
    full, idle = FakeWorker(hungry=False), FakeWorker()
    made, _ = waker(full, idle)
    made.more(full)
    assert (len(full.wakes), len(idle.wakes)) == (0, 1)
    made.more(full)
    assert (len(full.wakes), len(idle.wakes)) == (0, 1)
    made.close()


async def test_nonsense_is_counted_and_ignored() -> None:
    worker = FakeWorker()
    made, cancelled = waker(worker)
    for text in ("", "null", "[]", "{", '{"queue": "q"}', '{"queue": "q", "at": "x", "priorities": []}', "[" * 50_000):
        made.notice(text)
    assert made.notices == 7
    assert worker.wakes == []
    assert cancelled == []
    made.close()


async def test_an_operators_cancel_is_passed_on() -> None:
    made, cancelled = waker()
    made.notice(json.dumps({"cancel": 5, "session": 6, "claims": 7}))
    assert cancelled == [(5, 6, 7, None)]
    made.close()


async def test_due_times_are_bounded_and_the_earliest_survive() -> None:
    worker = FakeWorker()
    made, _ = waker(worker)
    made.due_in(0.1)
    for n in range(5000):
        made.due_in(100 + n / 100)
    await until(lambda: bool(worker.wakes))
    made.close()


async def test_jobs_that_wait_for_a_place_are_looked_for_again_within_a_second_by_one_worker() -> None:
    """Whoever frees the place may be on another node, busy, or dead: nobody tells."""
    one, two = FakeWorker(), FakeWorker()
    made, _ = waker(one, two)
    loop = asyncio.get_running_loop()
    started = loop.time()
    made.hungry(one, None, True)
    made.hungry(two, None, True)
    await until(lambda: bool(one.wakes or two.wakes))
    assert 0.3 < loop.time() - started < within(1, busy_s=5)
    assert len(one.wakes) + len(two.wakes) == 1
    made.hungry(one, None)
    made.close()


async def test_a_paused_queues_notices_wake_nobody_and_settings_are_passed_on() -> None:
    worker = FakeWorker()
    made, _ = waker(worker)
    settings.clear()
    made.notice(notice(DB_NOW, "paused"))
    made.notice(json.dumps({"queue": "q", "priorities": [], "at": DB_NOW, "settings": {"paused": False}}))
    assert worker.wakes == []
    assert settings == [("q", {"paused": False})]
    made.close()


async def test_a_note_of_a_gate_is_for_the_gatekeeper_and_wakes_nobody() -> None:
    worker = FakeWorker()
    made, _ = waker(worker)
    made.notice(json.dumps({"queue": "", "priorities": [], "at": DB_NOW, "gate": True}))
    assert (gates, worker.wakes) == ([DB_NOW], [])
