"""A relay or a consumer by itself: the health page and the numbers that a service has for all its processes.

    page --> relay or consume (role.py) --> page away
     '-- each second: tick      each SUPERVISOR_WATCH_EVERY_S: the outbox's figures

    /livez    200 while the loop turns
    /readyz   200 while events can flow: the database and the broker are reached; else 503 with the reasons
    /metrics  what this process counts, and the outbox's figures as each service shows them

Always true: a probe asks neither the database nor the broker. The page has nothing that speaks of a supervisor
(supervisor_ready, workers, leases): whoever alerts on those would take a relay for one. With SUPERVISOR_HEALTH_PORT=off
there is no page, and nothing is written to the run directory.

Elsewhere: the server (supervisor/probes.py); what is done (relay.py, consume.py).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import uvloop

from supervisor import metrics
from supervisor.db import events
from supervisor.db.link import DatabaseError, Link, first_line
from supervisor.errors import DatabaseUnavailable
from supervisor.log import Repeats, dropped_lines, get_logger
from supervisor.metrics.facts import Values
from supervisor.outbox import role as roles
from supervisor.outbox.figures import of_outbox
from supervisor.probes import STALE_S, HealthServer
from supervisor.release import VERSION
from supervisor.settings import Settings

Role = Literal["relay", "consume"]
NO_DATABASE: Final = "the database cannot be reached"
_COUNTED: Final = (
    "supervisor_outbox_events",
    "supervisor_consumed_events",
    "supervisor_consumers",
    "supervisor_log_lines_dropped",
)
_TICK_S: Final = 1.0
_GOOD_FOR: Final = 3
_TELL_AGAIN_S: Final = 600.0


class Working(Protocol):
    """A relay or a consumer."""

    def troubles(self) -> Iterable[str]:
        """Why no event flows now, in words of ours; none while all is well."""


class RoleHealth:
    """What the page says. Any thread may ask; the loop writes."""

    def __init__(self, role: Role, *, now: Callable[[], float] = time.monotonic) -> None:
        self._role = role
        self._now = now
        self._tick = now()
        self._working: Working | None = None
        self._stopped = False
        self.database_up = True
        """Whether the last look at the outbox's figures had an answer."""

    def tick(self) -> None:
        """The loop turns."""
        self._tick = self._now()

    def works(self, working: Working) -> None:
        """It has begun."""
        self._working = working

    def stopped(self) -> None:
        """It has ended, or is about to."""
        self._stopped = True

    def live(self) -> tuple[bool, dict[str, Any]]:
        """Whether the loop turns, and the answer of /livez."""
        age = self._now() - self._tick
        ok = age < STALE_S
        return ok, {"status": "ok" if ok else "stuck", "pid": os.getpid(), "tick_age_s": round(age, 3)}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Whether events can flow, and the answer of /readyz."""
        working = self._working
        state = "stopped" if self._stopped else "starting" if working is None else "working"
        reasons = [] if self.live()[0] else [f"the loop has not turned for {self._now() - self._tick:.0f} s"]
        if working is None or self._stopped:
            reasons.append(f"the {self._role} is {state}")
        else:
            reasons += working.troubles()
        if not self.database_up and NO_DATABASE not in reasons:
            reasons.append(NO_DATABASE)
        return not reasons, {
            "status": "not ready" if reasons else "ready",
            "role": self._role,
            "state": state,
            "reasons": reasons,
            "pid": os.getpid(),
        }


def run(role: Role, settings: Settings, database_url: str) -> int:
    """Relay or consume until told to stop; the exit code.

    Raises:
        BrokerRefused, SchemaMissing: As they say.
        SettingsInvalid: The health port cannot be bound.
    """
    if settings.health_port is None:
        return uvloop.run(_work(role, settings, database_url))
    directory = metrics.make_directory(settings.run_dir)
    try:
        metrics.setup(directory, role)
        return uvloop.run(_run(role, settings, database_url, directory, settings.health_port))
    finally:
        metrics.remove_directory(directory)


async def _run(role: Role, settings: Settings, database_url: str, directory: Path, port: int) -> int:
    health, facts = RoleHealth(role), metrics.Facts()
    server = HealthServer(
        health,
        lambda: metrics.render(directory, [facts], only=_COUNTED),
        host=settings.health_host,
        port=port,
    )
    server.start()
    _logger(role).info(f"{role}.page", health_host=settings.health_host, health_port=server.port)
    loop = asyncio.get_running_loop()
    seeing = [loop.create_task(_tick(health)), loop.create_task(_watch(role, settings, database_url, health, facts))]
    try:
        return await _work(role, settings, database_url, health.works)
    finally:
        health.stopped()
        for task in seeing:
            task.cancel()
        await asyncio.gather(*seeing, return_exceptions=True)
        server.stop()


def _logger(role: Role) -> Any:
    return get_logger("relay" if role == "relay" else "consumer")


async def _work(
    role: Role, settings: Settings, database_url: str, on_begun: Callable[[Working], None] = lambda _: None
) -> int:
    work = roles.relay if role == "relay" else roles.consume
    return await work(settings, database_url, on_begun=on_begun)


async def _tick(health: RoleHealth) -> None:
    dropped = 0
    while True:
        health.tick()
        missing = dropped_lines() - dropped
        if missing:
            dropped += missing
            metrics.metrics().log_lines_dropped.inc(missing)
        await asyncio.sleep(_TICK_S)


async def _watch(role: Role, settings: Settings, database_url: str, health: RoleHealth, facts: metrics.Facts) -> None:
    log, repeats = _logger(role), Repeats(_TELL_AGAIN_S)
    link = Link(
        database_url,
        name=f"pg-supervisor {role} watch",
        statement_timeout_s=settings.statement_timeout_s,
        connect_timeout_s=settings.connect_timeout_s,
    )
    every, read_at = settings.watch_every_s, time.monotonic()

    def of_process() -> Values:
        return {
            "build_info": {(VERSION,): 1},
            "database_up": {(): int(health.database_up)},
            "refresh_age_seconds": {("outbox",): time.monotonic() - read_at},
        }

    facts.ask(of_process)
    try:
        while True:
            try:
                state = await link.call(lambda conn: events.state_async(conn, settings.schema_))
            except DatabaseUnavailable as error:
                health.database_up = False
                repeats.tell(log.warning, f"{role}.unwatched", reason=first_line(error), did="trying again")
            except DatabaseError as error:  # it answers: the schema is not there yet, or there was no time
                health.database_up = True
                repeats.tell(log.warning, f"{role}.unwatched", reason=first_line(error), did="trying again")
            else:
                health.database_up, read_at = True, time.monotonic()
                facts.put("outbox", of_outbox(state), good_for_s=_GOOD_FOR * every + _TICK_S)
            await asyncio.sleep(every if health.database_up else min(every, _TICK_S))
    finally:
        await link.close()
