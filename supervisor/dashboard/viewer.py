"""What all who look share: the desk, answers that are good for a moment, and the word that somebody looks.

    ten browsers on the overview --once a second--> one set of questions

Always true: a question that is under way is not asked again; an answer is never older than its time.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from supervisor.db import browse
from supervisor.db.desk import Desk
from supervisor.errors import SupervisorError
from supervisor.log import Repeats, get_logger

T = TypeVar("T")

STATEMENT_TIMEOUT_S: Final = 3.0
PATIENCE_S: Final = 0.3
_WAITING_AND_ALL_S: Final = 0.6
_LEAST_PATIENCE_S: Final = 0.03
_LOOK_EVERY_S: Final = 2.0
_LOOK_LASTS_S: Final = 6.0

log = get_logger("dashboard")


class Viewer:
    """The desk and what is known from it."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._search = asyncio.Lock()
        self._searchers = 0
        self._answers: dict[str, tuple[float, asyncio.Task[Any]]] = {}
        self._told_at = 0.0
        self._repeats = Repeats()

    async def shared(self, name: str, lasts_s: float, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer of *ask*, or the one that somebody got under this *name* within *lasts_s* seconds."""
        until, task = self._answers.get(name, (0.0, None))
        if task is None or (task.done() and (time.monotonic() >= until or task.exception() is not None)):
            task = asyncio.get_running_loop().create_task(_awaited(ask))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait for it any more
            self._answers[name] = (time.monotonic() + lasts_s, task)
        answer: T = await asyncio.shield(task)
        return answer

    async def soon(self, name: str, lasts_s: float, ask: Callable[[], Awaitable[T]], wait_s: float) -> T | None:
        """As `shared`, for an answer that may take its time: None when it is not there within *wait_s* seconds."""
        try:
            async with asyncio.timeout(wait_s):
                return await self.shared(name, lasts_s, ask)
        except TimeoutError:
            return None

    @asynccontextmanager
    async def searching(self) -> AsyncIterator[float]:
        """Around looking through many jobs: one at a time, so that it keeps one processor of the server busy at most.

        Gives the seconds that it may take: fewer, the longer it has waited and the more there are behind it, so
        that five who search at once have all been answered in time.
        """
        arrived = time.monotonic()
        self._searchers += 1
        try:
            async with self._search:
                left = arrived + _WAITING_AND_ALL_S - time.monotonic()
                yield max(_LEAST_PATIENCE_S, min(PATIENCE_S, left / self._searchers))
        finally:
            self._searchers -= 1

    def forget(self, *names: str) -> None:
        """Something was changed: ask anew, so that the next page shows it. Without *names* everything."""
        for name in names or tuple(self._answers):
            self._answers.pop(name, None)

    async def somebody_looks(self) -> None:
        """Tell the supervisors, now and then. They show what they know in any case, so a failure is no news here."""
        now = time.monotonic()
        if now - self._told_at >= _LOOK_EVERY_S:
            self._told_at = now
            try:
                await self.desk.look(browse.look, seconds=_LOOK_LASTS_S)
            except SupervisorError as error:
                self._repeats.tell(log.info, "dashboard.look_untold", reason=str(error))


async def _awaited(ask: Callable[[], Awaitable[T]]) -> T:
    return await ask()
