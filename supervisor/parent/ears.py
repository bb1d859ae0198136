"""Listening as the service sees it: whether wake-ups arrive, said in the log, the metrics and the health page.

Elsewhere: the connection (db/listener.py); what a notification means (waker.py).
"""

import time
from collections.abc import Callable
from typing import Final

from supervisor.db.listener import Listener
from supervisor.log import Repeats, get_logger
from supervisor.metrics import metrics
from supervisor.parent.health import Degraded, HealthState
from supervisor.settings import Settings

# A pooler stays where it is: said once, and then ever more rarely.
_DEAF_AGAIN_S: Final = (600.0, 86_400.0)

log = get_logger("parent")


class Ears:
    """The state of LISTEN, and its loop.

    Args:
        on_notice: called with each notification's text.
        on_listening: called each time LISTEN is active again: look for what was missed.
        on_lost: called when it is not any more.
    """

    def __init__(
        self,
        url: str,
        settings: Settings,
        *,
        health: HealthState,
        on_notice: Callable[[str], None],
        on_listening: Callable[[], None],
        on_lost: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._now = now
        self._deaf_again_s = self._deaf_silent_until = 0.0
        self._health = health
        self._on_listening = on_listening
        self._on_lost = on_lost
        self._repeats = Repeats()
        self.listening = False
        self._listener = Listener(
            url,
            settings.schema_,
            name="pg-supervisor listen",
            connect_timeout_s=settings.connect_timeout_s,
            on_notice=on_notice,
            on_listening=self._hears,
            on_lost=self._lost,
            on_deaf=self._deaf,
        )

    async def run(self) -> None:
        """Listen until cancelled."""
        await self._listener.run()

    def _set(self, listening: bool) -> None:
        self.listening = listening
        metrics().listening.set(int(listening))
        self._health.set_degraded(Degraded.POLLING, not listening)

    async def _hears(self) -> None:
        self._set(True)
        self._deaf_again_s = self._deaf_silent_until = 0.0
        log.info("listener.listening")
        # Whatever was enqueued while nobody listened is found by looking now.
        self._on_listening()

    def _lost(self, reason: str) -> None:
        self._set(False)
        self._on_lost()
        self._repeats.tell(log.warning, "listener.lost", reason=reason, did="polling until it is back")

    def _deaf(self) -> None:
        self._set(False)
        if self._now() < self._deaf_silent_until:
            return
        least, most = _DEAF_AGAIN_S
        self._deaf_again_s = min(most, max(least, 2 * self._deaf_again_s))
        self._deaf_silent_until = self._now() + self._deaf_again_s
        log.warning(
            "listener.deaf",
            reason="its own notification did not arrive: a transaction-mode pooler is in between",
            did=f"polling every {self._settings.poll_without_listen_s:g} s",
            said_again_in_s=self._deaf_again_s,
            remedy="set SUPERVISOR_LISTEN_DATABASE_URL to the server's direct address",
        )
