"""Connections that the parts of a supervisor share.

    Links    as many as calls are under way, up to a limit; one when it is quiet
    Rider    one part's way: over a shared connection that is free, else over one of its own

Always true: a call waits for another one only when the limit is reached or no further connection can be had. A
rider's call never waits for a shared connection: what must get through in time (a renewal) is never behind
what may take long.

Elsewhere: one connection, its deadlines and errors (link.py).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from supervisor.db.house import HouseConnection
from supervisor.db.link import Link
from supervisor.errors import DatabaseUnavailable

T = TypeVar("T")

_KEPT_S: Final = 3.0
_LOOKS: Final = 20
_LOOK_S: Final = 0.005


class Caller(Protocol):
    """Whoever runs statements on a connection: Link, Links, Rider."""

    async def call(self, work: Callable[[HouseConnection], Awaitable[T]]) -> T:
        """As Link.call."""


class Links:
    """A few connections for all callers.

    Args:
        make: makes one more.
        most: the most at one time.
        kept_s: how long one beyond the first stays open unused.
    """

    def __init__(self, make: Callable[[], Link], *, most: int, kept_s: float = _KEPT_S) -> None:
        self._make = make
        self._most = most
        self._kept_s = kept_s
        self._links = [make()]

    def free(self) -> Link | None:
        """An open one that nobody uses now."""
        return next((link for link in self._links if link.open and not link.busy), None)

    async def soon_free(self) -> Link | None:
        """An open one that nobody uses now or in a moment: short statements meet by chance, and one more connection for
        that would stay open for a while."""
        for _ in range(_LOOKS):
            if (link := self.free()) is not None or not any(one.open for one in self._links):
                return link
            await asyncio.sleep(_LOOK_S)
        return self.free()

    async def call(self, work: Callable[[HouseConnection], Awaitable[T]]) -> T:
        """As Link.call."""
        link = await self.soon_free() or next((link for link in self._links if not link.busy), None) or self._another()
        try:
            return await link.call(work)
        except DatabaseUnavailable as error:
            # The server takes no more connections: those that there are take turns.
            other = min((one for one in self._links if one.open), key=lambda one: one.callers, default=None)
            if error.unsure or link.open or other is None:
                raise
            return await other.call(work)
        finally:
            await self._close_idle()

    def _another(self) -> Link:
        if len(self._links) < self._most:
            self._links.append(self._make())
            return self._links[-1]
        return min(self._links, key=lambda link: link.callers)

    async def _close_idle(self) -> None:
        for link in self._links[1:]:
            await _close_unused(link, self._kept_s)

    async def close(self) -> None:
        """Close them all."""
        for link in self._links:
            await link.close()


class Rider:
    """Calls over a shared connection that is free, else over *own*.

    Args:
        patience_s: how long an answer is waited for on a shared one.
    """

    def __init__(self, own: Link, shared: Links, *, patience_s: float, kept_s: float = _KEPT_S) -> None:
        self._own = own
        self._shared = shared
        self._patience_s = patience_s
        self._kept_s = kept_s

    async def call(self, work: Callable[[HouseConnection], Awaitable[T]]) -> T:
        """As Link.call."""
        shared = await self._shared.soon_free()
        if shared is None:
            return await self._own.call(work)
        try:
            return await shared.call(work, patience_s=self._patience_s)
        finally:
            await _close_unused(self._own, self._kept_s)

    async def close(self) -> None:
        """Close its own."""
        await self._own.close()


async def _close_unused(link: Link, kept_s: float) -> None:
    if link.open and not link.busy and time.monotonic() - link.used_at > kept_s:
        await link.close()
