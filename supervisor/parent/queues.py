"""What this supervisor knows of queues' settings, and what follows from a change of them.

    notification --heard---.        paused ----------------------> workers release what they have not started
    each tick ----refresh--+-->     resumed, limit raised or gone -> a worker looks
                                    limited for the first time ----> count what runs; its claims wait for that

Always true: claims themselves obey the settings (db/functions/045_queue.sql), and nothing here can make them
exceed any. What a lost notification would have brought, the next tick brings.

Elsewhere: hearing and waking (waker.py); the statements (db/queues.py).
"""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from supervisor.db.link import DatabaseError
from supervisor.db.links import Caller
from supervisor.db.queues import Counting, QueueSettings
from supervisor.log import get_logger

log = get_logger("parent")


class _Known(NamedTuple):
    paused: bool = False
    max_running: int | None = None
    counted: bool = True
    rate_limit: int | None = None
    rate_period_s: float | None = None


_NOTHING: Final = _Known()
_COUNT_S: Final = 1.0


class Queues:
    """The settings of queues.

    Args:
        on_paused: called with a queue of which nothing more is to start.
        on_opened: called with a queue of which more may be claimed than before.
        on_limited: called when there are runs to count: see `count`.
    """

    def __init__(
        self,
        link: Caller,
        schema: str,
        *,
        on_paused: Callable[[str], None],
        on_opened: Callable[[str], None],
        on_limited: Callable[[], None],
    ) -> None:
        self._link = link
        self._schema = schema
        self._on_paused = on_paused
        self._on_opened = on_opened
        self._on_limited = on_limited
        self._known: dict[str, _Known] = {}
        self._counting: dict[str, Counting] = {}
        self._heard_at: dict[str, float] = {}

    def paused(self, queue: str) -> bool:
        """Whether *queue* is paused, as far as is known."""
        return self._known.get(queue, _NOTHING).paused

    def heard(self, queue: str, told: dict[str, Any]) -> None:
        """Take over what a notification says of *queue*."""
        limit = told.get("max_running")
        counted = limit is None or bool(told.get("counted"))
        fresh = _Known(bool(told.get("paused")), limit, counted, told.get("rate_limit"), told.get("rate_period"))
        self._heard_at[queue] = time.monotonic()
        self._take(queue, fresh)
        if not fresh.counted:
            self._on_limited()

    def refresh(self, stored: Iterable[QueueSettings], asked_at: float) -> None:
        """Take over the table, as it was at some time after *asked_at*; what was heard since then is newer."""
        newer = {queue for queue, at in self._heard_at.items() if at >= asked_at}
        self._heard_at = {queue: self._heard_at[queue] for queue in newer}
        found = {
            one.name: _Known(
                one.paused,
                one.max_running,
                one.max_running is None or one.counted,
                one.rate_limit,
                one.rate_period_s,
            )
            for one in stored
        }
        for queue in [*self._known]:
            if queue not in found and queue not in newer:
                self._take(queue, _NOTHING)
        for queue, fresh in found.items():
            if queue not in newer:
                self._take(queue, fresh)

    def _take(self, queue: str, fresh: _Known) -> None:
        before = self._known.get(queue, _NOTHING)
        if fresh == before:
            return
        if fresh == _NOTHING:
            del self._known[queue]
        else:
            self._known[queue] = fresh
        log.info(
            "queue.set",
            queue=queue,
            paused=fresh.paused,
            max_running=fresh.max_running,
            rate_limit=fresh.rate_limit,
            rate_period_s=fresh.rate_period_s,
        )
        if fresh.paused:
            if not before.paused:
                self._on_paused(queue)
        elif before.paused or _more(before, fresh):
            self._on_opened(queue)

    async def count(self, stored: Iterable[QueueSettings]) -> None:
        """Count what ran before each limit that is new, for a second at most: the next tick goes on."""
        todo = {one.name: one for one in stored if one.max_running is not None and not one.counted}
        self._counting = {
            name: one
            for name, one in self._counting.items()
            if name in todo and todo[name].limited_at == one.queue.limited_at
        }
        until = time.monotonic() + _COUNT_S
        for name, queue in todo.items():
            counting = self._counting.setdefault(name, Counting(queue))
            done: bool | None = None
            while done is None:
                if time.monotonic() > until:
                    self._on_limited()
                    return
                try:
                    done = await self._link.call(partial(counting.step_async, schema=self._schema))
                except DatabaseError as error:
                    if error.sqlstate != "55P03":
                        raise
                    log.info("queue.uncounted", queue=name, reason="a claim takes long", did="trying again")
                    break
            if done:
                log.info("queue.counted", queue=name, max_running=queue.max_running)


def _more(before: _Known, fresh: _Known) -> bool:
    """Whether more may run than before; the end of counting is where claims begin.

    Of a rate that is another one any job may be the next: whoever looks learns when.
    """
    if fresh.counted and before.rate_limit is not None and fresh[3:] != before[3:]:
        return True
    if not fresh.counted or before.max_running is None:
        return fresh.counted and not before.counted
    return not before.counted or fresh.max_running is None or fresh.max_running > before.max_running
