"""The parent process: everything in it, started and stopped in order.

    connect, check the schema --> listen, renew, tend, watch, serve health --> workers --> ... --> drain

SIGTERM or SIGINT drains and exits; a second one moves the deadline to now. SIGUSR1 drains and stays, so
that a preStop hook can wait for it.

Always true: no handler runs here, and nothing here waits for a worker, a slow log reader, a scrape or,
without a time limit, the database.

Elsewhere: each part in its own room: fleet.py, waker.py, leases.py, tender.py, deadlines.py, health.py.
"""

import asyncio
import os
import secrets
import signal
import time
from typing import Any, Final

from supervisor import __version__, exits, grace, metrics
from supervisor.clock import DbClock
from supervisor.db import tend
from supervisor.db.jobs import Lane
from supervisor.db.link import DatabaseError, Link, first_line
from supervisor.db.links import Links, Rider
from supervisor.db.migrate import check_version
from supervisor.errors import DatabaseUnavailable, HandlersFailed, SchemaMissing, SchemaTooNew
from supervisor.floods import Floods
from supervisor.log import Repeats, dropped_lines, get_logger
from supervisor.metrics.facts import Values
from supervisor.parent.cancels import Cancels
from supervisor.parent.child import Child
from supervisor.parent.cron import Cron
from supervisor.parent.deadlines import Deadlines
from supervisor.parent.ears import Ears
from supervisor.parent.fleet import Fleet
from supervisor.parent.gates import Gatekeeper
from supervisor.parent.guard import Guard, wait_at_most
from supervisor.parent.health import Degraded, HealthState, ServiceState
from supervisor.parent.helper import Helper
from supervisor.parent.isolation import Isolation
from supervisor.parent.lanes import LaneBook
from supervisor.parent.leases import Holder, Leases
from supervisor.parent.looker import Looker
from supervisor.parent.presence import Presence
from supervisor.parent.queues import Queues
from supervisor.parent.rebuild import Rebuilder
from supervisor.parent.rest import Rest
from supervisor.parent.runfile import RunFile
from supervisor.parent.showing import Showing
from supervisor.parent.spawn import ForkServer, reap_strangers
from supervisor.parent.tally import Tally
from supervisor.parent.tender import Tender
from supervisor.parent.vacuum import TIMEOUT_S as VACUUM_TIMEOUT_S
from supervisor.parent.vacuum import Vacuum
from supervisor.parent.waker import Waker
from supervisor.parent.watch import Watch
from supervisor.probes import HealthServer
from supervisor.settings import Settings
from supervisor.wire.messages import HandBack, Hungry, Wake
from supervisor.worker import tracing
from supervisor.worker.main import WorkerConfig

_LEAST_PATIENCE_S: Final = 0.5
_HOUSE_S: Final = 0.5
_LATE_CLAIM_S: Final = (0.05, 0.2)
MOST_LINKS: Final = 4

log = get_logger("parent")


class Parent:
    """One supervisor service.

    Args:
        database_url: where the queue lives.
    """

    def __init__(self, settings: Settings, database_url: str) -> None:
        self._settings = settings
        self._schema = settings.schema_
        self._url = database_url
        self._id = secrets.randbits(63) or 1
        self._metrics_dir = metrics.make_directory(settings.run_dir)
        metrics.setup(self._metrics_dir, metrics.PARENT)
        self._numbers = metrics.metrics()
        self._health = HealthState()
        self._facts = metrics.Facts()
        self._server: HealthServer | None = None
        if settings.health_port is not None:
            self._server = HealthServer(
                self._health,
                lambda: metrics.render(self._metrics_dir, [self._facts]),
                host=settings.health_host,
                port=settings.health_port,
            )
        self._runfile = RunFile(settings.run_dir)
        self._clock = DbClock()
        # A renewal that does not answer is to be tried again, over a new connection, well within the lease.
        patience_s = max(_LEAST_PATIENCE_S, settings.lease_s / 10)
        self._links = Links(lambda: self._link("pg-supervisor parent"), most=MOST_LINKS)
        self._lease_link = Rider(
            self._link("pg-supervisor leases", patience_s=patience_s), self._links, patience_s=patience_s
        )
        self._rest = Rest(listening=lambda: self._ears.listening)
        self._lanes = LaneBook()
        self._repeats = Repeats()
        self._guard = Guard(self._health)
        self._exit = asyncio.Event()
        self._drain_wanted = asyncio.Event()
        self._changed = asyncio.Event()
        self._drain_deadline = float("inf")
        self._settle_by: float | None = None
        self._fatal: HandlersFailed | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._waker = Waker(
            workers=lambda: self._fleet.ready(),  # noqa: PLW0108 (the fleet comes next)
            clock=self._clock,
            on_cancel=lambda *run: self._cancels.heard(*run),  # noqa: PLW0108 (it comes later)
            on_queue=self._queue_named,
            on_look=lambda seconds: self._showing.looked_at(seconds),  # noqa: PLW0108 (it comes later)
            on_gates=lambda at: self._gatekeeper.heard(at),  # noqa: PLW0108 (it comes later)
            on_settings=lambda queue, told: self._queues.heard(queue, told),  # noqa: PLW0108 (the queues come next)
            paused=lambda queue: self._queues.paused(queue),  # noqa: PLW0108
        )
        self._isolation = Isolation(
            workers=lambda: self._fleet.ready(),  # noqa: PLW0108 (the fleet comes next)
            at_once=max(1, settings.processes // 4),
        )
        self._tend_soon = asyncio.Event()
        self._next_tick_s = 0.0
        self._queues = Queues(
            self._links,
            self._schema,
            on_paused=self._queue_paused,
            on_opened=lambda queue: self._waker.wake(Wake(queue), "settings"),
            on_limited=self._tend_soon.set,
        )
        self._fleet = Fleet(
            settings=settings,
            config=self._worker_config,
            fork_server=ForkServer(
                settings.handlers, str(self._metrics_dir), () if settings.traces == "off" else tracing.LIBRARIES
            ),
            link=self._lease_link,
            metrics_dir=self._metrics_dir,
            on_kinds=lambda told: self._cron.declare(told.kinds, told.entries),
            on_ready=self._worker_ready,
            on_hungry=self._worker_hungry,
            on_more=self._worker_full,
            on_due=self._waker.due_in,
            on_suspects=self._isolation.due_in,
            on_isolated=self._isolation.answered,
            on_gone=self._isolation.gone,
            on_recovered=self._recovered,
            on_fatal=self._stop_for,
        )
        self._leases = Leases(
            self._lease_link,
            settings,
            holders=self._fleet.living,
            on_closed=self._session_closed,
            on_fenced=lambda fenced: self._health.set_degraded(Degraded.FENCED, fenced),
        )
        self._watch = Watch(
            self._links,
            settings,
            guard=self._guard,
            facts=self._facts,
            tally=Tally(self._links, self._schema, totals=self._ended_by_queue, clock=self._clock),
            listed=self._server is not None,
            rest=self._rest,
        )
        self._facts.ask(self._facts_of_service)
        self._tender = Tender(self._links, settings, self._id, resting=lambda: self._rest.resting)
        self._rebuilder = Rebuilder(self._links, settings, database_url, guard=self._guard, rest=self._rest)
        self._cron = Cron(self._links, settings, guard=self._guard, rest=self._rest)
        self._ears = Ears(
            settings.listen_database_url.get_secret_value() if settings.listen_database_url else database_url,
            settings,
            health=self._health,
            on_notice=self._notice,
            on_listening=self._heard_again,
            on_lost=self._heard_no_more,
        )
        self._looker = Looker(
            self._links,
            settings,
            guard=self._guard,
            fleet=self._fleet,
            waker=self._waker,
            isolation=self._isolation,
            lanes=self._lanes,
            listening=lambda: self._ears.listening,
        )
        self._presence = Presence(
            self._links,
            settings,
            self._id,
            guard=self._guard,
            fleet=self._fleet,
            health=self._health,
            clock=self._clock,
            listening=lambda: self._ears.listening,
            flooded=lambda: self._floods.paused,
            on_wanted=self._looker.look_now,
        )
        self._cancels = Cancels(
            self._links,
            settings,
            guard=self._guard,
            workers=self._fleet.living,
            listening=lambda: self._ears.listening,
        )
        self._vacuum = Vacuum(
            self._links,
            lambda: self._link("pg-supervisor vacuum", statement_timeout_s=VACUUM_TIMEOUT_S),
            settings,
            guard=self._guard,
            rest=self._rest,
        )
        self._gatekeeper = Gatekeeper(self._links, settings, guard=self._guard, clock=self._clock, rest=self._rest)
        self._showing = Showing(self._links, settings, guard=self._guard, fleet=self._fleet, clock=self._clock)
        self._helper = Helper(settings, database_url) if settings.dashboard_port is not None else None
        wanted = (("relay", settings.outbox_url), ("consume", settings.consume_url))
        self._roles = [
            Helper(
                settings,
                database_url,
                what=role,
                program=("supervisor.outbox", role),
                metrics_dir=str(self._metrics_dir),
                stop_s=max(_LEAST_PATIENCE_S, settings.drain_timeout_s),
            )
            for role, url in wanted
            if url is not None
        ]
        self._floods = Floods(look=lambda: self._waker.wake(Wake(), "flood"), on_change=self._presence.beat_now)

    # ---- the whole life

    async def run(self) -> int:
        """Serve until told to stop; the exit code."""
        started = time.monotonic()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_signal, number)
        loop.add_signal_handler(signal.SIGUSR1, self._drain_signal)
        loop.add_signal_handler(signal.SIGHUP, self._hangup_signal)
        if self._server is not None:
            self._server.start()
        if self._helper is not None:
            self._helper.start()  # first: it is wanted most when the rest does not come up
        self._say_state(ServiceState.STARTING)
        log.info("supervisor.starting", pid=os.getpid(), version=__version__, **self._settings.redacted())
        too_short = grace.shortage(self._settings.drain_timeout_s, self._settings.termination_grace_s)
        if too_short is not None:
            log.warning("grace.short", reason=too_short)
        try:
            await self._check_schema()
            if not self._exit.is_set():
                self._start_parts()
                if not self._drain_wanted.is_set():  # told to drain while the database was away
                    self._fleet.start()
                    for role in self._roles:
                        role.start()
                    await self._until_ready_or_exit(started)
                await self._drain_wanted.wait()
                await self._drain()
                await self._exit.wait()
        except (SchemaMissing, SchemaTooNew) as error:
            log.error("supervisor.refused", reason=str(error))
            return exits.CONFIG
        finally:
            code = await self._shut()
        log.info("supervisor.stopped", code=code, ran_s=round(time.monotonic() - started, 1))
        return code

    async def _check_schema(self) -> None:
        """Wait for the database, however long that takes, and see that the schema fits."""
        pause = 0.1
        while not self._exit.is_set():
            try:
                found = await self._links.call(lambda conn: tend.version(conn, self._schema))
            except DatabaseUnavailable as error:
                self._guard.database_away(error.reason)
            except DatabaseError as error:
                if error.sqlstate in ("42P01", "42703", "3F000"):
                    raise SchemaMissing(self._schema) from error
                self._guard.database_away(first_line(error))
            else:
                self._health.set_degraded(Degraded.DATABASE_UNREACHABLE, False)
                try:
                    check_version(found, self._schema)
                except SchemaTooNew as error:
                    # Migrations only add: an older release goes on beside a newer schema.
                    self._health.set_degraded(Degraded.SCHEMA_NEWER, True)
                    log.warning("schema.newer", reason=str(error), did="going on with what this release knows")
                return
            self._health.tick()
            await wait_at_most(self._exit, pause)
            pause = min(2.0, pause * 2)

    def _start_parts(self) -> None:
        self._spawn_task(self._leases.run())
        self._spawn_task(
            self._guard.every(self._settings.reap_every_s, self._tick, "tend", self._tend_soon, self._until_tick)
        )
        self._spawn_task(self._presence.run())
        self._spawn_task(self._looker.run())
        self._spawn_task(self._gatekeeper.run())
        self._spawn_task(self._vacuum.run())
        self._spawn_task(self._showing.run())
        self._spawn_task(self._house())
        self._spawn_task(self._watch.run())
        self._spawn_task(self._rebuilder.run())
        self._spawn_task(self._cron.run())
        self._spawn_task(self._cancels.run())
        self._spawn_task(self._cancels.look())
        self._spawn_task(Deadlines(self._fleet.living, self._settings.concurrency).run())
        if self._settings.wake:
            self._spawn_task(self._ears.run())
            self._spawn_task(self._floods.run())
        else:
            self._health.set_degraded(Degraded.POLLING, True)
            self._numbers.listening.set(0)

    async def _until_ready_or_exit(self, started: float) -> None:
        while not self._drain_wanted.is_set() and len(self._fleet.ready()) < self._settings.processes:
            self._changed.clear()
            await self._changed.wait()
        if not self._drain_wanted.is_set():
            self._health.set_workers(ready=len(self._fleet.ready()), total=self._settings.processes)
            self._say_state(ServiceState.READY)
            log.info(
                "supervisor.ready",
                pid=os.getpid(),
                workers=self._settings.processes,
                took_s=round(time.monotonic() - started, 2),
                health_port=self._server.port if self._server else None,
            )

    async def _drain(self) -> None:
        self._say_state(ServiceState.DRAINING)
        started = time.monotonic()
        await asyncio.gather(
            self._fleet.drain(lambda: self._drain_deadline, "drain"), *(role.stop() for role in self._roles)
        )
        await self._settled()
        self._runfile.write(state="drained", name=self._settings.name)
        self._presence.beat_now()
        log.info("supervisor.drained", took_s=round(time.monotonic() - started, 2), workers_cut=self._fleet.cut)

    async def _settled(self) -> bool:
        """Wait for what ended workers held to be put back; one patience for the whole stop."""
        now = time.monotonic()
        self._settle_by = self._settle_by or now + grace.SETTLE_S
        return await self._fleet.settle_down(max(0.0, self._settle_by - now))

    async def _shut(self) -> int:
        self._waker.close()
        self._isolation.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        settled = await self._settled()
        await self._say_goodbye()
        self._health.set_state(ServiceState.STOPPED)
        self._fleet.close()
        if self._server is not None:
            self._server.stop()
        metrics.remove_directory(self._metrics_dir)
        self._runfile.remove()
        if self._fatal is not None:
            return exits.CONFIG
        return exits.CUT if self._fleet.cut or not settled else exits.OK

    async def _say_goodbye(self) -> None:
        """What is nice to have done at the end, all at once and within a limit: the platform's patience is short."""
        last = [role.stop() for role in self._roles]  # where it never came to a drain
        if self._helper is not None:
            last.append(self._helper.stop())
        if self._presence.written:
            last += [self._take_row_away(), self._watch.finish()]
        await asyncio.gather(*last)
        # Not waited for where a statement still waits for a silent database: the connection ends with the process.
        closing = [asyncio.get_running_loop().create_task(link.close()) for link in (self._lease_link, self._links)]
        await asyncio.wait(closing, timeout=grace.HANG_UP_S)

    async def _take_row_away(self) -> None:
        try:
            async with asyncio.timeout(grace.GOODBYE_S):
                await self._presence.gone()
        except (DatabaseUnavailable, DatabaseError, TimeoutError) as error:
            log.warning("parent.row_left", reason=first_line(error), did="left it: it expires by itself")

    # ---- signals

    def _stop_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._exit.is_set():
            log.warning("supervisor.hurried", signal=name, did="moved the drain deadline to now")
            self._drain_deadline = time.monotonic()
            return
        log.info("supervisor.stopping", signal=name, drain_timeout_s=self._settings.drain_timeout_s)
        self._begin_drain()
        self._exit.set()

    def _drain_signal(self) -> None:
        first = not self._drain_wanted.is_set()
        self._begin_drain()
        if first:
            log.info("supervisor.draining", signal="SIGUSR1", did="staying until SIGTERM")
        if not self._tasks:
            self._runfile.write(state="drained", name=self._settings.name)  # nothing was begun yet

    def _hangup_signal(self) -> None:
        """From a terminal: it was closed, so stop. From a script: a wish to reload, which must not be the end."""
        if os.isatty(0) or os.isatty(2):
            self._stop_signal(signal.SIGHUP)
        else:
            self._repeats.tell(
                log.warning, "hangup.ignored", reason="settings and handlers are read at the start", remedy="restart it"
            )

    def _begin_drain(self) -> None:
        if not self._drain_wanted.is_set():
            self._drain_deadline = time.monotonic() + self._settings.drain_timeout_s
            self._say_state(ServiceState.DRAINING)  # at once: no request is to be sent here any more
            self._cron.forget()
            self._rebuilder.stop()
            self._drain_wanted.set()
            self._changed.set()

    def _stop_for(self, error: HandlersFailed) -> None:
        if self._fatal is None:
            self._fatal = error
            self._health.set_degraded(Degraded.BOOT_FAILED, True)
            log.error("handlers.failed", reason=str(error), traceback=error.traceback_text)
            self._begin_drain()
            self._exit.set()

    # ---- workers

    def _worker_config(self, slot: int) -> WorkerConfig:
        return WorkerConfig(slot, self._settings.name, self._id, self._settings, self._url, str(self._metrics_dir))

    def _worker_ready(self, child: Child) -> None:
        self._rest.work()
        self._changed.set()
        child.tell(self._lanes.everything())
        child.wake(Wake())

    def _recovered(self) -> None:
        """A dead worker's jobs are put back; those of a claim that was on its way commit a moment later."""
        self._tend_soon.set()
        for seconds in _LATE_CLAIM_S:
            asyncio.get_running_loop().call_later(seconds, self._tend_soon.set)

    def _worker_hungry(self, child: Child, said: Hungry) -> None:
        self._floods.looked(said.found)
        if said.found:
            self._rest.work()
        self._presence.idle()
        self._waker.hungry(child, said.next_due_in_s, said.blocked)
        self._isolation.idle(child)

    def _worker_full(self, child: Child) -> None:
        self._floods.looked(True)
        self._rest.work()
        self._waker.more(child)

    def _session_closed(self, holder: Holder, session: int) -> None:
        """A session that cannot be renewed any more; its worker learns it now, not at its next statement."""
        for child in self._fleet.living():
            if child is holder and child.sessions() == [session]:
                child.wake(Wake())

    def _queue_named(self, queue: str, priorities: list[int]) -> list[tuple[str, int]]:
        lanes = [Lane(queue, priority) for priority in priorities]
        if any(lane.suspects for lane in lanes):
            self._isolation.due()
        message = self._lanes.announce(lanes)
        if message is not None:
            for child in self._fleet.living():
                child.tell(message)
        if not lanes:
            self._looker.look_now()  # more priorities than fit in a notification
            lanes = self._lanes.of_queue(queue)
        return [(lane.queue, lane.priority) for lane in lanes]

    def _queue_paused(self, queue: str) -> None:
        for child in self._fleet.living():
            child.tell(HandBack(queue))

    def _notice(self, payload: str) -> None:
        self._rest.work()
        self._floods.heard()
        self._waker.notice(payload)

    def _heard_no_more(self) -> None:
        self._rest.work()
        self._cancels.look_now()

    def _heard_again(self) -> None:
        self._cancels.look_now()
        self._rest.work()
        self._presence.beat_now()
        self._looker.look_now()

    # ---- rhythms

    async def _tick(self) -> None:
        asked_at, self._next_tick_s = time.monotonic(), 0.0
        report = await self._tender.tick()
        self._queues.refresh(report.queues, asked_at)
        if report.tended:
            await self._queues.count(report.queues)
        if self._lanes.announced:
            await self._links.call(lambda conn: tend.add_lanes(conn, self._schema, sorted(self._lanes.announced)))
        unheard = report.lanes.keys() - self._lanes.known.keys()
        message = self._lanes.refresh(report.lanes)
        if message is not None:
            for child in self._fleet.living():
                child.tell(message)
        if report.suspects_due:
            self._isolation.due()
        self._next_tick_s = report.next_in_s
        if report.found or unheard:
            self._rest.work()
        if unheard:
            self._looker.look_now()  # no notification told of these, so none will tell of their jobs

    async def _until_tick(self, soon: asyncio.Event, seconds: float) -> None:
        await self._rest.wait(soon, seconds, self._next_tick_s)

    async def _house(self) -> None:
        """Gauges, recycling, adopted zombies: once or a few times a second."""
        while True:
            self._health.tick()
            ready = self._fleet.ready()
            self._health.set_workers(ready=len(ready), total=self._settings.processes)
            for state, count in self._fleet.states().items():
                self._numbers.workers.labels(state).set(count)
            if ready and any(child.hungry for child in ready):
                self._presence.idle()
            self._fleet.recycle()
            others = (
                self._fleet.fork_server_pid,
                self._helper.pid if self._helper else None,
                *(role.pid for role in self._roles),
            )
            reap_strangers({child.pid for child in self._fleet.living()} | {pid for pid in others if pid})
            missing = dropped_lines() - self._dropped
            if missing:
                self._dropped += missing
                self._numbers.log_lines_dropped.inc(missing)
            planned = time.monotonic() + _HOUSE_S
            await asyncio.sleep(_HOUSE_S)
            self._numbers.loop_lag_seconds.observe(max(0.0, time.monotonic() - planned))

    _dropped = 0

    # ---- figures for the page

    def _ended_by_queue(self) -> dict[tuple[str, str], float]:
        """What runs and releases the processes have counted, by queue and outcome."""
        ended = metrics.totals(self._metrics_dir, "supervisor_jobs_total", "queue", "outcome")
        released = metrics.totals(self._metrics_dir, "supervisor_released_total", "queue")
        counts = {(queue, outcome): count for (queue, outcome), count in ended.items()}
        for (queue,), count in released.items():
            counts[queue, "released"] = counts.get((queue, "released"), 0.0) + count
        return counts

    def _facts_of_service(self) -> Values:
        """Called by the page's thread."""
        degraded = self._health.degraded()
        return {
            "build_info": {(__version__,): 1},
            "ready": {(): int(self._health.ready()[0])},
            "degraded": {(str(what),): int(what in degraded) for what in Degraded},
            "database_up": {(): int(Degraded.DATABASE_UNREACHABLE not in degraded)},
            "lease_renewal_age_seconds": {(): time.monotonic() - self._leases.renewed_at},
        }

    # ---- small things

    def _say_state(self, state: ServiceState) -> None:
        self._health.set_state(state)
        port = self._server.port if self._server else None
        self._runfile.write(state=str(state), name=self._settings.name, health_port=port)
        self._presence.beat_now()  # `supervisor status` reads it from the database

    def _spawn_task(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._part_ended)
        self._tasks.append(task)

    def _part_ended(self, task: asyncio.Task[None]) -> None:
        """A part that ends by itself is a fault of ours: say it, and stop rather than limp."""
        if task.cancelled():
            return
        error = task.exception()
        log.error("parent.part_ended", error=repr(error), exc_info=error, did="stopping the service")
        self._begin_drain()
        self._exit.set()

    def _link(self, name: str, patience_s: float = float("inf"), statement_timeout_s: float | None = None) -> Link:
        return Link(
            self._url,
            name=name,
            statement_timeout_s=min(patience_s, statement_timeout_s or self._settings.statement_timeout_s),
            connect_timeout_s=min(patience_s, self._settings.connect_timeout_s),
        )
