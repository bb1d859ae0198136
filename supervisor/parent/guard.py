"""Runs the parent's recurring work so that nothing ends its loops.

A database that fails is said once a second, counted by place, and shown in the health page until some
work succeeds again; a fault of ours is said with its traceback. The loop goes on in every case.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable

from supervisor.db.link import DatabaseError, first_line
from supervisor.errors import DatabaseUnavailable
from supervisor.log import Repeats, get_logger
from supervisor.metrics import metrics
from supervisor.parent.health import Degraded, HealthState

_LEAST_PAUSE_S = 0.02

log = get_logger("parent")


class Guard:
    """Around everything that the parent does again and again."""

    def __init__(self, health: HealthState) -> None:
        self._health = health
        self._repeats = Repeats()

    async def run(self, work: Callable[[], Awaitable[None]], where: str) -> bool:
        """Do *work* once; *where* names it in logs and metrics. Never raises; whether it was done."""
        errors = metrics().errors.labels(where)
        try:
            await work()
        except DatabaseUnavailable as error:
            self.database_away(error.reason)
            errors.inc()
        except DatabaseError as error:
            errors.inc()
            self._repeats.tell(log.error, f"{where}.refused", reason=f"{error.sqlstate}: {first_line(error)}")
        except Exception as error:
            errors.inc()
            held = self._repeats.allow(where)
            if held is not None:
                log.error(f"{where}.failed", error=repr(error), exc_info=error)
        else:
            self._health.set_degraded(Degraded.DATABASE_UNREACHABLE, False)
            return True
        return False

    async def every(
        self,
        seconds: float,
        work: Callable[[], Awaitable[None]],
        where: str,
        soon: asyncio.Event | None = None,
        wait: Callable[[asyncio.Event, float], Awaitable[None]] | None = None,
    ) -> None:
        """Do *work* about every so many seconds, and at once when *soon* is set, until cancelled; *wait* may wait
        longer."""
        soon = soon or asyncio.Event()
        while True:
            soon.clear()
            await self.run(work, where)
            await asyncio.sleep(min(seconds, _LEAST_PAUSE_S))
            await (wait or wait_at_most)(soon, seconds * random.uniform(0.9, 1.1))

    def database_away(self, reason: str) -> None:
        """The database cannot be reached: say so, at most once a second."""
        self._health.set_degraded(Degraded.DATABASE_UNREACHABLE, True)
        self._repeats.tell(log.warning, "database.unreachable", reason=reason)


async def wait_at_most(event: asyncio.Event, seconds: float) -> None:
    """Return when *event* is set or *seconds* have passed."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
