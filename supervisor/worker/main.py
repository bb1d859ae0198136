"""A worker process, from the fork to its exit.

    starting   handlers are there (preload.py), the loop runs, the database is reached (retried for as
               long as it takes), the session is open; says Ready
    ready      claims, runs, stores; says Hungry when it finds no more, More when there may be
    draining   on Drain, SIGTERM or EOF of the parent: claims nothing, releases the unstarted at once,
               lets the running finish until the deadline, stores everything, closes the session; says
               Drained and leaves

Always true: the process ends by os._exit with an exact code (exits.py), whatever threads handlers left
behind. Jobs still running at the deadline stay on the scoreboard as started: the parent releases them
once this process is gone; where the parent has died, nobody does before their lease has passed. So no
second run can overlap the first.

Elsewhere: what is claimed (exchange.py), run (executor.py) and stored (results.py), renewed when the parent is gone
(orphan.py).
"""

import asyncio
import errno
import faulthandler
import os
import random
import signal
import socket
import sys
import time
import traceback
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

import uvloop

from supervisor import exits, log, metrics
from supervisor.clock import remaining
from supervisor.db.jobs import Lane, Mark, mark_at
from supervisor.db.link import Link, first_line
from supervisor.db.pools import HandlerPools
from supervisor.errors import DatabaseUnavailable
from supervisor.handler import Handler, registry
from supervisor.log import get_logger
from supervisor.settings import Settings
from supervisor.wire.board import Board, WorkerState
from supervisor.wire.channel import Channel, send_blocking
from supervisor.wire.messages import (
    BootFailed,
    CancelJob,
    Drain,
    Drained,
    HandBack,
    Hungry,
    Isolate,
    Lanes,
    Message,
    More,
    Ready,
    Stop,
    Wake,
)
from supervisor.worker import tracing
from supervisor.worker.counts import Counts
from supervisor.worker.exchange import Exchange
from supervisor.worker.executor import Executor
from supervisor.worker.isolation import isolate
from supervisor.worker.marks import Marks
from supervisor.worker.orphan import keep_alive
from supervisor.worker.progress import Progress
from supervisor.worker.results import keep_level
from supervisor.worker.run import TransactionDesk
from supervisor.worker.session import Session

_TICK_S: Final = 0.25
_MORE_EVERY_S: Final = 0.02
_CUT_GRACE_S: Final = 0.5
_EXPORT_S: Final = 2.0
_LEAST_EXPORT_S: Final = 0.2
_HOUSE_LINK: Final = "pg-supervisor worker"

logger = get_logger("worker")


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What a worker is told at its birth."""

    slot: int
    name: str
    parent: int
    settings: Settings
    database_url: str
    metrics_dir: str


def run_worker(config: WorkerConfig, sock: socket.socket, board: Board) -> None:
    """The target of the forked process; never returns."""
    settings = config.settings
    code = exits.SOFTWARE
    try:
        # ^C reaches the whole group: the parent decides. Not SIG_IGN, which handlers' children would inherit.
        signal.signal(signal.SIGINT, lambda *_: None)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        log.configure(settings.log_format, settings.log_level)
        log.bind_process(worker=f"{config.name}/{config.slot}", slot=config.slot)
        log.adopt_strays()
        metrics.setup(config.metrics_dir, f"w{config.slot}")
        faulthandler.enable(board.fault_fd())
        board.set_header(pid=os.getpid(), rss=_rss(), state=WorkerState.STARTING)
        preload = sys.modules.get("supervisor.worker.preload")
        if preload is None:
            raise RuntimeError("the fork server did not preload the worker's code")
        failure = preload.failure
        if failure is not None:
            send_blocking(sock, BootFailed(failure.traceback_text), timeout=2.0)
            code = exits.CONFIG
        else:
            code = _run_loop(config, sock, board, registry())
    except BaseException:
        logger.error("worker.failed", slot=config.slot, traceback=traceback.format_exc())
        board.set_header(state=WorkerState.DRAINED)  # not its jobs' doing
        code = exits.SOFTWARE
    finally:
        log.flush(1.0)
        os._exit(code)


def _run_loop(config: WorkerConfig, sock: socket.socket, board: Board, handlers: Mapping[str, Handler[Any]]) -> int:
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    main = loop.create_task(Worker(config, sock, board, handlers).main())
    while True:
        try:
            return loop.run_until_complete(main)
        except (SystemExit, KeyboardInterrupt) as error:
            # From a task or callback that a handler left behind: never the worker's end.
            if main.done():
                raise
            logger.error("handler.exit_ignored", reason=repr(error), did="went on: a stray task of a handler raised it")
        except RuntimeError:
            if main.done():
                raise
            logger.error("handler.stop_ignored", reason="a handler stopped the event loop", did="went on")


class Worker:
    """One worker: the wiring of its parts, and its stopping."""

    def __init__(
        self, config: WorkerConfig, sock: socket.socket, board: Board, handlers: Mapping[str, Handler[Any]]
    ) -> None:
        self._config = config
        self._settings = config.settings
        self._sock = sock
        self._board = board
        self._handlers = handlers
        self._told_hungry = False
        self._drain_deadline: float | None = None
        self._draining = asyncio.Event()
        self._answer_owed = False  # to the parent's last wake
        self._more: asyncio.TimerHandle | None = None
        self._deadline_moved = asyncio.Event()
        self._orphaned = False
        self._born = time.monotonic()

    async def main(self) -> int:
        """Run until told to leave; the exit code."""
        config, settings = self._config, self._settings
        self._traces = tracing.start(settings, f"{config.name}/{config.slot}")
        metrics.register_labels("kind", self._handlers)
        metrics.register_labels("queue", [q.name for q in settings.queues if q.name != "*"])
        metrics.register_labels("queue", sorted({h.queue for h in self._handlers.values()}))
        counts = self._counts = Counts(metrics.metrics(), self._board)
        if config.slot == 0:
            counts.show_zeros((handler.queue, kind) for kind, handler in self._handlers.items())
        link = self._new_link(_HOUSE_LINK)
        pools = HandlerPools(
            config.database_url,
            name="pg-supervisor handler",
            size=settings.pool_size,
            timeout_s=30.0,
            connect_timeout_s=settings.connect_timeout_s,
        )
        weights = {queue.name: queue.weight for queue in settings.queues}
        self._marks = Marks(weights, random.Random(), ageing_s=settings.ageing_s)
        self._session = Session(
            link,
            settings.schema_,
            parent=config.parent,
            name=f"{config.name}/{config.slot}",
            lease_s=settings.lease_s,
            board=self._board,
        )
        self._exchange = Exchange(
            link=link,
            session=self._session,
            marks=self._marks,
            settings=settings,
            board=self._board,
            counts=counts,
            known=tuple(self._handlers),
            on_dry=self._dry,
            on_full=self._full,
        )
        self._progress = Progress(link, settings.schema_, lambda: self._session.id)
        self._executor = Executor(
            slots=settings.concurrency,
            prefetch=settings.prefetch,
            board=self._board,
            counts=counts,
            handlers=self._handlers,
            desk=TransactionDesk(
                pools, settings.schema_, keep_level(settings), lambda: self._session.id, self._progress.say
            ),
            sink=self._exchange,
            lease_until=self._session.lease_until,
            traces=self._traces,
        )
        self._exchange.executor = self._executor
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: self._drain(self._far_deadline(), "signal"))
        self._channel = Channel(self._sock, on_message=self._heard, on_eof=self._parent_gone)
        ticker = loop.create_task(self._tick(pools))
        exchange = loop.create_task(self._exchange.run())
        exchange.add_done_callback(self._exchange_ended)
        try:
            if await self._open_session():
                self._board.set_header(state=WorkerState.READY)
                kinds, queues = tuple(sorted(self._handlers)), metrics.known_labels("queue")
                entries = tuple(entry for kind in kinds for entry in self._handlers[kind].entries if entry.kind == kind)
                self._channel.send(Ready(os.getpid(), self._session.id, kinds, _rss(), queues, entries))
                self._exchange.wake()
                await self._until_draining()
            return await self._leave(exchange, link, pools)
        finally:
            ticker.cancel()

    async def _until_draining(self) -> None:
        try:
            await self._draining.wait()
        except asyncio.CancelledError:
            # Only a handler can have done this, by cancelling every task it found: pools' and its neighbours' too.
            this = asyncio.current_task()
            if this is not None:
                this.uncancel()  # else the time-outs of leaving would take it for theirs (before Python 3.11.4)
            self._spent("a handler cancelled the worker's own tasks")

    def _spent(self, reason: str) -> None:
        """A handler has spoilt this process: finish what runs and leave, another takes over."""
        if not self._draining.is_set():
            logger.error("worker.spent", slot=self._config.slot, reason=reason, did="draining; another takes over")
            self._drain(self._far_deadline(), "spent")

    async def _open_session(self) -> bool:
        """Open the session, however long the database is away; False if told to leave first."""
        pause, repeats = 0.05, log.Repeats(5.0)
        while not self._draining.is_set():
            try:
                await self._session.open()
                return True
            except DatabaseUnavailable as error:
                repeats.tell(logger.warning, "database.unreachable", reason=error.reason, slot=self._config.slot)
            except Exception as error:
                repeats.tell(logger.error, "session.refused", reason=first_line(error), slot=self._config.slot)
            try:
                async with asyncio.timeout(pause * (0.5 + random.random())):
                    await self._draining.wait()
            except TimeoutError:
                pause = min(pause * 2, 2.0)
        return False

    # ---- what the parts report

    def _dry(self, next_s: float | None, found: bool, blocked: bool) -> None:
        self._withdraw_more()
        if not self._draining.is_set():
            self._channel.send(Hungry(next_s, found, blocked))

    def _full(self) -> None:
        if self._answer_owed:
            self._say_more()
        elif self._more is None:  # claims that come back full are many: each one would wake the parent too
            self._more = asyncio.get_running_loop().call_later(_MORE_EVERY_S, self._say_more)

    def _say_more(self) -> None:
        self._withdraw_more()
        if not self._draining.is_set():
            self._channel.send(More())

    def _withdraw_more(self) -> None:
        self._answer_owed = False
        if self._more is not None:
            self._more.cancel()
            self._more = None

    # ---- what the parent says

    def _heard(self, message: Message) -> None:
        match message:
            case Wake():
                self._answer_owed = True
                for point in message.set_back:
                    if self._marks.serves(point.queue):
                        self._marks.set_back(Lane(point.queue, point.priority), mark_at(point.at_us))
                if message.all_back_to_us is not None:
                    self._marks.set_all_back(mark_at(message.all_back_to_us))
                if self._executor.room() == 0:
                    self._full()  # no hands free: let the parent wake another
                else:
                    self._counts.woken()
                self._exchange.wake()
            case Lanes():
                self._marks.publish(
                    [(Lane(m.queue, m.priority), Mark(mark_at(m.at_us), m.id)) for m in message.lanes],
                    [Lane(gone.queue, gone.priority) for gone in message.remove],
                )
            case CancelJob():
                run = self._executor.cancel(message.job_id, message.token)
                if run is not None:
                    logger.info("job.cancelling", job_id=message.job_id, kind=run.job.kind)
            case HandBack():
                self._executor.hand_back(message.queue)
            case Isolate():
                self._isolating = asyncio.get_running_loop().create_task(self._isolate(message.patience_s))
            case Drain():
                self._drain(message.deadline, message.reason)
            case Stop():
                self._drain(time.monotonic() if message.now else self._far_deadline(), "stop")
            case _:
                pass

    async def _isolate(self, patience_s: float) -> None:
        self._channel.send(await isolate(self._executor, self._exchange, patience_s))

    def _far_deadline(self) -> float:
        return time.monotonic() + self._settings.drain_timeout_s

    def _parent_gone(self) -> None:
        """The parent died without a word: keep the lease, finish what runs, leave."""
        self._orphaned = True
        self._orphan_task = asyncio.get_running_loop().create_task(
            keep_alive(self._new_link("pg-supervisor orphan"), self._session, self._settings)
        )
        logger.error(
            "parent.lost", slot=self._config.slot, did="released the unstarted, finishing what runs, then leaving"
        )
        self._drain(self._far_deadline(), "parent_lost")

    def _drain(self, deadline: float, reason: str) -> None:
        if self._drain_deadline is None or deadline < self._drain_deadline:
            self._drain_deadline = deadline
            self._deadline_moved.set()
        if not self._draining.is_set():
            logger.info(
                "worker.draining",
                slot=self._config.slot,
                reason=reason,
                running=len(self._executor.running),
                unstarted=self._executor.waiting,
                deadline_in_s=round(remaining(self._drain_deadline), 1),
            )
            self._board.set_header(state=WorkerState.DRAINING)
            self._exchange.stop_claiming()
            self._executor.stop_starting()
            self._draining.set()

    def _exchange_ended(self, exchange: asyncio.Task[None]) -> None:
        """A worker without its exchange would hold jobs and take none: a fault of ours ends it; another starts."""
        if not exchange.cancelled() and (error := exchange.exception()) is not None:
            try:
                self._board.set_header(state=WorkerState.DRAINED)  # not its jobs' doing
                logger.error("worker.failed", slot=self._config.slot, error=repr(error), exc_info=error)
                log.flush(1.0)
            finally:  # whatever there is no memory for
                os._exit(exits.SOFTWARE)

    # ---- leaving

    async def _leave(self, exchange: asyncio.Task[None], link: Link, pools: HandlerPools) -> int:
        finished_before = self._exchange.jobs_done
        await self._wait_while(lambda: bool(self._executor.running))
        cut = len(self._executor.running)
        if cut:
            self._executor.interrupt()
            # The parent kills at its own, later deadline; give cancelled handlers a moment to clean up.
            self._drain_deadline = time.monotonic() + _CUT_GRACE_S
            await self._wait_while(lambda: bool(self._executor.running))
        self._exchange.close()
        store_until = max(self._drain_deadline or 0.0, time.monotonic()) + 1.0
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + remaining(store_until)):
                await exchange
                if not self._executor.running:
                    await self._session.close()
        except (TimeoutError, DatabaseUnavailable) as error:
            logger.warning(
                "drain.unstored",
                slot=self._config.slot,
                results=self._exchange.unstored,
                reason=first_line(error) or "the deadline passed",
                did="left them to the parent" if not self._orphaned else "left them to the reaper",
            )
            cut += self._exchange.unstored
        released = self._exchange.released
        still = len(self._executor.running)
        self._counts.flush_samples()
        self._board.set_header(state=WorkerState.DRAINED)
        self._channel.send(Drained(self._exchange.jobs_done - finished_before, released, cut))
        await self._channel.flush(0.5)
        if still:
            # An orphan's session stays open: nobody else kills this process before others may run these jobs, and
            # with the answer to its closing on the way, or lost, they would run beside it. Then the lease passes.
            logger.warning(
                "drain.cut",
                slot=self._config.slot,
                job_ids=sorted(self._executor.running)[:20],
                did="leaving them until their lease has passed"
                if self._orphaned
                else "leaving them; they are queued again, uncharged",
                remedy="raise SUPERVISOR_DRAIN_TIMEOUT_S and the platform's grace period above it",
            )
        else:
            await _quietly(pools.close())
        await _quietly(link.close())
        # All is stored: what an exporter still has to send may take a moment of what is left of the drain.
        self._traces.stop(min(_EXPORT_S, max(_LEAST_EXPORT_S, remaining(self._drain_deadline or 0.0))))
        return exits.CUT if cut else exits.OK

    async def _wait_while(self, busy: Any) -> None:
        """Wait until *busy* is false or the drain deadline, which may move, has passed."""
        while busy():
            left = remaining(self._drain_deadline or 0.0)
            if left <= 0:
                return
            # Looking is cheap; 10 ms late is the price of not threading an event through every ending.
            self._deadline_moved.clear()
            try:
                async with asyncio.timeout(min(left, 0.01)):
                    await self._deadline_moved.wait()
            except TimeoutError:
                continue

    # ---- housekeeping

    def _new_link(self, name: str) -> Link:
        return Link(
            self._config.database_url,
            name=name,
            statement_timeout_s=self._settings.statement_timeout_s,
            connect_timeout_s=self._settings.connect_timeout_s,
        )

    async def _tick(self, pools: HandlerPools) -> None:
        """Show the parent that the loop turns, and keep the gauges."""
        numbers = metrics.metrics()
        numbers.slots.set(self._settings.concurrency)
        rss = 0
        while True:
            running = len(self._executor.running)
            self._board.tick()
            try:
                rss = _rss()
            except OSError as error:
                if error.errno == errno.EMFILE:
                    self._spent("no descriptors are left: handlers leak them")
            self._board.set_header(running=running, ended=self._exchange.jobs_done, rss=rss)
            numbers.slots_busy.set(running)
            self._counts.flush_samples()
            self._executor.unstick()
            self._exchange.tick()
            self._progress.tick()
            for state, count in pools.stats().items():
                numbers.pool_connections.labels(state).set(count)
            await asyncio.sleep(_TICK_S)


async def _quietly(closing: Coroutine[None, None, None]) -> None:
    """Everything is stored: what a handler has made of these connections does not matter any more."""
    try:
        await closing
    except (Exception, asyncio.CancelledError) as error:
        logger.info("connection.not_closed", reason=repr(error))


def _rss() -> int:
    """Resident memory in bytes, shared pages included."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
