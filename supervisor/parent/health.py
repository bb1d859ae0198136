"""What the service says of itself: whether its loop turns, whether jobs can be run, and if not, why.

    parent's loop --tick, facts--> HealthState <--asked by-- /livez, /readyz

Always true: no answer holds a name, an address or any text from outside.

Elsewhere: the server (supervisor/probes.py); who notes the facts (the rooms of parent/).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from supervisor.probes import STALE_S


class ServiceState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"


class Degraded(StrEnum):
    """What does not work as it should. The service goes on; with some of them it is not ready."""

    POLLING = "polling"  # no LISTEN: jobs start later
    DATABASE_UNREACHABLE = "database_unreachable"
    BOOT_FAILED = "boot_failed"
    FENCED = "fenced"  # no renewal in time: what ran was stopped before its lease passed to others
    SCHEMA_NEWER = "schema_newer"  # a later release migrated: this one goes on with what it knows
    NO_WORKER = "no_worker"  # none is ready, though the service is
    DRAINING = "draining"


NOT_READY: Final = {
    Degraded.DATABASE_UNREACHABLE: "the database cannot be reached",
    Degraded.BOOT_FAILED: "workers cannot start; the log has the traceback",
    Degraded.FENCED: "leases could not be renewed: running jobs were stopped before others take them",
}


@dataclass(frozen=True, slots=True)
class Facts:
    state: ServiceState = ServiceState.STARTING
    workers_ready: int = 0
    workers_total: int = 0
    degraded: frozenset[Degraded] = field(default_factory=frozenset)


class HealthState:
    """Facts about the service. Any thread may read, the parent's loop writes; facts are replaced as a whole."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._tick = now()
        self._facts = Facts()

    def tick(self) -> None:
        """The parent's loop turns: call it about once a second."""
        self._tick = self._now()

    @property
    def facts(self) -> Facts:
        return self._facts

    def set_state(self, state: ServiceState) -> None:
        self._facts = replace(self._facts, state=state)

    def set_workers(self, *, ready: int, total: int) -> None:
        self._facts = replace(self._facts, workers_ready=ready, workers_total=total)

    def set_degraded(self, what: Degraded, on: bool) -> None:
        degraded = self._facts.degraded
        self._facts = replace(self._facts, degraded=degraded | {what} if on else degraded - {what})

    def degraded(self) -> frozenset[Degraded]:
        """All that does not work as it should."""
        facts = self._facts
        if facts.state is ServiceState.DRAINING:
            return facts.degraded | {Degraded.DRAINING}
        if facts.state is ServiceState.READY and not facts.workers_ready:
            return facts.degraded | {Degraded.NO_WORKER}
        return facts.degraded

    def live(self) -> tuple[bool, dict[str, Any]]:
        """Whether the parent's loop turns, and the answer of /livez."""
        age = self._now() - self._tick
        ok = age < STALE_S
        return ok, {"status": "ok" if ok else "stuck", "pid": os.getpid(), "tick_age_s": round(age, 3)}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Whether jobs can be run, and the answer of /readyz."""
        facts = self._facts
        live, _ = self.live()
        reasons = [] if live else [f"the supervisor's loop has not turned for {self._now() - self._tick:.0f} s"]
        if facts.state is not ServiceState.READY:
            reasons.append(f"the service is {facts.state}")
        elif not facts.workers_ready:
            reasons.append(f"no worker is ready (0 of {facts.workers_total})")
        reasons += [text for what, text in NOT_READY.items() if what in facts.degraded]
        return not reasons, {
            "status": "not ready" if reasons else "ready",
            "state": facts.state,
            "reasons": reasons,
            "degraded": sorted(self.degraded()),
            "workers": {"ready": facts.workers_ready, "total": facts.workers_total},
            "pid": os.getpid(),
        }
