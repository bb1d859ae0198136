"""The workers of one parent: a slot each, filled again when its worker is gone.

    slot --spawn--> starting --> ready --> ... --> exited
                                                     |-- put its jobs back  (recovery.py)
                                                     '-- restart            (by the policy in states.py)

Always true: a slot has at most one living worker. A death never waits for the database: the replacement
is forked at once, and recovery is retried beside it until the database has answered. Crashes within the
budget restart at once; beyond it with a doubling delay, never faster, never for good.

Elsewhere: one worker (child.py); what becomes of its jobs (recover.py, recovery.py); who is replaced before it
dies (recycling.py).
"""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Final

from supervisor import exits
from supervisor.clock import remaining
from supervisor.db.links import Caller
from supervisor.errors import HandlersFailed
from supervisor.grace import KILL_AFTER_DRAIN_S
from supervisor.log import Repeats, get_logger
from supervisor.metrics import clear_gauges, metrics, register_labels
from supervisor.parent.budget import RestartBudget
from supervisor.parent.child import Child
from supervisor.parent.deaths import death_word, oom_kills, say_death
from supervisor.parent.limits import memory_there_is, senseless
from supervisor.parent.recover import Death
from supervisor.parent.recovery import Recovery
from supervisor.parent.recycling import Recycling
from supervisor.parent.spawn import ForkServer, SpawnFailed
from supervisor.parent.states import Happened, Restart, State, restart
from supervisor.settings import Settings
from supervisor.wire.board import WorkerState
from supervisor.wire.messages import (
    BootFailed,
    Drained,
    Hungry,
    Isolated,
    LeaseLost,
    Message,
    More,
    Notice,
    Ready,
)
from supervisor.worker.main import WorkerConfig

_SPAWN_RETRY_S: Final = 1.0
_BOARD_SLACK: Final = 64
# On the page from the start, at 0: Prometheus sees no increase in a series that begins at 1.
_DEATHS: Final = ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "exit")

log = get_logger("fleet")


class Fleet:
    """All workers of one parent.

    Args:
        link: the connection that recoveries use.
        on_kinds: called with what a worker that became ready said of its handlers.
        on_ready: called with a worker that became ready.
        on_hungry, on_more: as the worker says them.
        on_due, on_suspects, on_recovered: as Recovery has them.
        on_isolated: called with a worker and its answer to Isolate.
        on_gone: called with a worker that is gone.
        on_fatal: called with what makes running on pointless: handlers that do not import.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        config: Callable[[int], WorkerConfig],
        fork_server: ForkServer,
        link: Caller,
        metrics_dir: Path,
        on_kinds: Callable[[Ready], None],
        on_ready: Callable[[Child], None],
        on_hungry: Callable[[Child, Hungry], None],
        on_more: Callable[[Child], None],
        on_due: Callable[[float], None],
        on_suspects: Callable[[float], None],
        on_isolated: Callable[[Child, Isolated], None],
        on_gone: Callable[[Child], None],
        on_recovered: Callable[[], None],
        on_fatal: Callable[[HandlersFailed], None],
    ) -> None:
        self._settings = settings
        self._config = config
        self._fork_server = fork_server
        self._metrics_dir = metrics_dir
        self._on_kinds = on_kinds
        self._on_ready = on_ready
        self._on_hungry = on_hungry
        self._on_more = on_more
        self._on_isolated = on_isolated
        self._on_gone = on_gone
        self._on_fatal = on_fatal
        self._entries = 2 * (settings.concurrency + settings.most_prefetched) + settings.max_unacked + _BOARD_SLACK
        self._children: dict[int, Child] = {}
        self._spawning = 0
        self._budgets = [RestartBudget(settings) for _ in range(settings.processes)]
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._recycling = Recycling(settings)
        self._recovery = Recovery(
            link,
            settings,
            metrics_dir=metrics_dir,
            on_due=on_due,
            on_suspects=on_suspects,
            on_recovered=on_recovered,
        )
        self._limits_seen = False
        self._ooms = oom_kills()
        for word in _DEATHS:
            metrics().crashes.labels(word)
        self._repeats = Repeats()
        self.cut = 0
        """Workers that did not finish what they ran before they had to go."""
        self._left = asyncio.Event()

    # ---- who is there

    def living(self) -> list[Child]:
        """Every worker whose process exists."""
        return [child for child in self._children.values() if child.alive]

    def ready(self) -> list[Child]:
        """Those that take jobs."""
        return [child for child in self._children.values() if child.state is State.READY]

    @property
    def fork_server_pid(self) -> int | None:
        """The fork server's process."""
        return self._fork_server.pid

    def states(self) -> dict[str, int]:
        """How many workers are in each state."""
        counts = {str(state): 0 for state in State if state is not State.EXITED}
        for child in self.living():
            counts[child.state] += 1
        return counts

    # ---- starting

    def start(self) -> None:
        """Fill every slot."""
        for slot in range(self._settings.processes):
            self._later(self._spawn(slot, 0.0))

    async def _spawn(self, slot: int, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        self._spawning += 1
        try:
            await self._fill(slot)
        finally:
            self._spawning -= 1
            self._left.set()

    async def _fill(self, slot: int) -> None:
        while not self._stopping:
            counted = self._recovery.counted_by(slot)
            try:
                spawned = await self._fork_server.spawn(self._config(slot), self._entries)
            except SpawnFailed as error:
                await self._spawn_failed(slot, error)
                continue
            child = Child(slot, spawned, on_message=self._heard, on_exit=self._exited)
            child.counted_before = counted
            self._children[slot] = child
            self._recycling.born(child)
            log.info("worker.started", slot=slot, pid=child.pid)
            self._drain_if_stopping(child)
            return

    async def _spawn_failed(self, slot: int, error: SpawnFailed) -> None:
        if not self._stopping:  # else it was us who ended the fork server
            self._repeats.tell(log.error, "worker.spawn_failed", slot=slot, reason=str(error))
            await asyncio.sleep(_SPAWN_RETRY_S)

    def _drain_if_stopping(self, child: Child) -> None:
        """The drain began while it was being forked."""
        if self._stopping:
            child.stop_now("drain")

    # ---- what workers say

    def _heard(self, child: Child, message: Message) -> None:
        match message:
            case Ready():
                child.happened(Happened.READY)
                child.birth_rss = message.rss
                child.queues = message.queues
                register_labels("kind", message.kinds)
                register_labels("queue", message.queues)
                log.info(
                    "worker.ready",
                    slot=child.slot,
                    pid=child.pid,
                    kinds=len(message.kinds),
                    birth_mb=round(message.rss / 2**20),
                )
                self._say_odd_limits(child)
                self._on_kinds(message)
                self._on_ready(child)
            case Hungry():
                self._on_hungry(child, message)
            case More():
                self._on_more(child)
            case Isolated():
                self._on_isolated(child, message)
            case Drained():
                log.info(
                    "worker.drained",
                    slot=child.slot,
                    finished=message.finished,
                    released=message.released,
                    interrupted=message.interrupted,
                )
            case BootFailed():
                child.boot_failure = message.traceback
            case LeaseLost():
                log.warning("lease.lost", slot=child.slot, job_ids=message.job_ids)
            case Notice():
                log.warning(message.event, slot=child.slot, **message.fields)
            case _:
                pass

    def _say_odd_limits(self, child: Child) -> None:
        if not self._limits_seen:
            self._limits_seen = True
            for text in senseless(self._settings, birth_rss=child.birth_rss, memory=memory_there_is()):
                log.warning("limits.odd", reason=text)

    # ---- endings

    def _exited(self, child: Child, code: int | None) -> None:
        board = child.snapshot()
        # An exit code alone proves nothing: a handler may call os._exit with any of ours. What the worker
        # noted on its board before it left does.
        orderly = board.state is WorkerState.DRAINED or (code == exits.CONFIG and board.state is WorkerState.STARTING)
        caused = child.caused if orderly or child.state is State.KILLED else None
        if orderly and caused is None:
            caused = "drain" if code in (exits.OK, exits.CUT) else "fault"  # a signal of its own; a fault of ours
        child.gone()
        self._on_gone(child)
        clear_gauges(self._metrics_dir, f"w{child.slot}")
        self._recycling.gone(child)
        ooms = oom_kills()
        why = say_death(child.slot, child.pid, code, oom=ooms > self._ooms)
        death = Death(why, caused, child.board.fault())
        self._ooms = ooms
        if orderly and code == exits.CUT and self._stopping:
            self.cut += 1
        if caused is None or caused == "fault":
            metrics().crashes.labels(death_word(code)).inc()
        self._later(self._recovery.run(child, board, death))
        self._restart(child, code, death, orderly)
        self._left.set()

    def _restart(self, child: Child, code: int | None, death: Death, orderly: bool) -> None:
        what = restart(code, death.caused, orderly=orderly)
        if what is Restart.STOP_SERVICE:
            self._on_fatal(HandlersFailed(", ".join(self._settings.handlers), child.boot_failure or death.why))
            return
        if self._stopping:
            return
        delay = 0.0
        if what is Restart.WITHIN_BUDGET:
            delay = self._budgets[child.slot].delay()
        log.log(
            30 if what is Restart.WITHIN_BUDGET else 20,
            "worker.exited",
            slot=child.slot,
            pid=child.pid,
            code=code,
            why=death.why,
            caused=death.caused,
            restart_in_s=round(delay, 2),
            **({"traceback": death.trace} if death.trace else {}),
        )
        metrics().restarts.labels(death.caused or ("crash" if what is Restart.WITHIN_BUDGET else "exit")).inc()
        self._later(self._spawn(child.slot, delay))

    # ---- stopping and replacing

    async def drain(self, deadline: Callable[[], float], reason: str) -> None:
        """Ask every worker to leave by *deadline*, which may move nearer, and wait until all have gone."""
        self._stopping = True
        for child in self.living():
            child.drain(deadline(), reason)
        told = deadline()
        while self._spawning or self.living():
            self._left.clear()
            if not self.living():
                self._fork_server.end()  # it only forks, or imports handlers, for workers nobody wants any more
            if deadline() < told:
                told = deadline()
                for child in self.living():
                    child.drain(told, reason)
            if remaining(told + KILL_AFTER_DRAIN_S) <= 0:
                for child in self.living():
                    if child.state is State.KILLED:
                        continue
                    log.error(
                        "worker.killed", slot=child.slot, pid=child.pid, reason="still there at the drain deadline"
                    )
                    self.cut += 1
                    child.kill(reason)
            try:
                async with asyncio.timeout(0.05):
                    await self._left.wait()
            except TimeoutError:
                continue

    async def settle_down(self, timeout_s: float) -> bool:
        """Wait for recoveries to end; whether they did."""
        return await self._recovery.wait(timeout_s)

    def close(self) -> None:
        """End the fork server: no worker is wanted any more."""
        self._fork_server.end()

    def recycle(self) -> None:
        """Replace one worker that is past a limit; the next one only when that one is gone."""
        if not self._stopping:
            self._recycling.look(self.ready())

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("fleet.task_failed", error=repr(error), exc_info=error)
