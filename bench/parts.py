"""What a job of `drain` is made of: processor time of each part by itself, in a worker and in the server.

The parts are the worker's own (executor, scoreboard, counters, the statement work), called in turn in this process for
batches of a backlog, with nothing else on the machine. In a drain four of them and their servers share the processors'
caches, so that each part takes about half as long again there.

    claim     in the server: rows found, locked, updated, sent. In the worker: rows decoded into jobs
    take      a run and an entry on the scoreboard for each job
    run       the handler: its task, arguments checked against the signature, two writes of the scoreboard, the outcome
    task      of that, what an empty coroutine's task takes by itself
    ack       in the worker: arrays of ids, tokens, times. In the server: rows deleted
    count     metrics, and entries freed
"""

import asyncio
import secrets
import time
from typing import Any, Final, cast

import psycopg
import uvloop

from bench import machine
from bench.emptying import add
from supervisor.db import jobs
from supervisor.db.house import HouseConnection
from supervisor.db.jobs import Lane, Mark
from supervisor.handler import registry
from supervisor.metrics import metrics
from supervisor.wire.board import Board
from supervisor.worker.counts import Counts
from supervisor.worker.executor import Executor
from supervisor.worker.run import Run, TransactionDesk

WORKER: Final = ("claim", "take", "run", "task", "ack", "count")
SERVER: Final = ("claim", "ack")
_SCHEMA: Final = "supervisor"
_WARM: Final = 5


class Found:
    """Microseconds per job, by part."""

    def __init__(self) -> None:
        self.worker = dict.fromkeys(WORKER, 0.0)
        self.server = dict.fromkeys(SERVER, 0.0)


def measure(url: str, batch: int, rounds: int, *, scattered: int = 1) -> Found:
    """The parts of so many batches; *url*: a migrated database. *scattered*: jobs lie so many rows apart."""
    add(url, batch * (rounds + _WARM), scattered=scattered)
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("vacuum (analyze) supervisor.job")
    return uvloop.run(_Parts(batch).of(url, rounds))


class _Sink:
    """Where ended runs go."""

    def __init__(self, batch: int) -> None:
        self.runs: list[Run] = []
        self.all = asyncio.Event()
        self._batch = batch

    def returned(self, run: Run) -> None:
        self.runs.append(run)
        if len(self.runs) == self._batch:
            self.all.set()

    def room_made(self) -> None:
        pass


class _Parts:
    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._spent = {("worker", part): 0.0 for part in WORKER} | {("server", part): 0.0 for part in SERVER}

    async def of(self, url: str, rounds: int) -> Found:
        house = await HouseConnection.connect(url, autocommit=True)
        board = Board.create(2 * self._batch)
        try:
            session = secrets.randbits(62) | 1
            await jobs.open_session(house, _SCHEMA, session=session, parent=1, name="bench", lease_s=86_400.0)
            await self._batches(house, board, session, rounds)
        finally:
            board.close()
            await house.close()
        found = Found()
        for (where, part), spent in self._spent.items():
            (found.worker if where == "worker" else found.server)[part] = spent / (rounds * self._batch) * 1e6
        return found

    async def _batches(self, house: HouseConnection, board: Board, session: int, rounds: int) -> None:
        sink, counts = _Sink(self._batch), Counts(metrics(), board)
        executor = Executor(
            slots=10, prefetch=None, board=board, counts=counts, handlers=registry(),
            desk=cast(TransactionDesk, None), sink=sink, lease_until=lambda: float("inf"),
        )  # fmt: skip
        statement: dict[str, Any] = {"session": session, "keep": 0}
        lanes, mark = [Lane("default", 0)], Mark()
        for number in range(-_WARM, rounds):
            clock = _Clock(house.info.backend_pid, self._spent if number >= 0 else {})
            answer = await jobs.work(house, _SCHEMA, **statement, lanes=lanes, marks=[mark], limit=self._batch)
            clock.read("claim", server=True)
            if len(answer.jobs) != self._batch:
                raise RuntimeError(f"a claim of {self._batch} jobs brought {len(answer.jobs)}")
            mark = answer.marks[0]
            executor.take(answer.jobs)  # the first ones are started by this, too
            clock.read("take")
            await sink.all.wait()
            clock.read("run")
            await jobs.work(house, _SCHEMA, **statement, acks=[run.ack() for run in sink.runs])
            clock.read("ack", server=True)
            now = time.monotonic()
            for run in sink.runs:
                counts.stored(run, "done", now)
                board.free(run.entry)
            counts.flush()
            counts.settled()
            sink.runs.clear()
            sink.all.clear()
            clock.read("count")
            await self._tasks()
            clock.read("task")

    async def _tasks(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(self._batch // 10):
            await asyncio.wait([loop.create_task(_nothing()) for _ in range(10)])


async def _nothing() -> None:
    pass


class _Clock:
    """Adds what this process and the server's have spent since the last look."""

    def __init__(self, pid: int, spent: dict[tuple[str, str], float]) -> None:
        self._pid = pid
        self._spent = spent
        self._at = self._now()

    def read(self, part: str, *, server: bool = False) -> None:
        now = self._now()
        if self._spent:
            self._spent["worker", part] += now[0] - self._at[0]
            if server:
                self._spent["server", part] += now[1] - self._at[1]
        self._at = self._now()

    def _now(self) -> tuple[float, float]:
        return time.process_time(), machine.running_ns(self._pid) / 1e9
