"""What this supervisor's workers run right now, written down for people to see.

    nobody looks      with every renewal interval
    somebody looks    each second; the dashboard says so by a notification, good for some seconds

It comes from the scoreboards, so it costs the workers nothing and says what they do, not what they were told to.

Always true: nothing decides by it. A failure to write it is a failure of nobody's job: the next round tries again.

Elsewhere: the notification (sql/look.sql, waker.py); who shows it (dashboard/pages/workers.py).
"""

import asyncio
import json
import time
from typing import Final

from supervisor.clock import DbClock
from supervisor.db import tend
from supervisor.db.links import Caller
from supervisor.parent.child import Child
from supervisor.parent.fleet import Fleet
from supervisor.parent.guard import Guard, wait_at_most
from supervisor.settings import Settings
from supervisor.wire.board import Phase

LOOKED_AT_EVERY_S: Final = 1.0
_LONGEST_LOOK_S: Final = 60.0
_MOST_JOBS: Final = 100


class Showing:
    """The writing of it, and its rhythm."""

    def __init__(self, link: Caller, settings: Settings, *, guard: Guard, fleet: Fleet, clock: DbClock) -> None:
        self._link = link
        self._settings = settings
        self._guard = guard
        self._fleet = fleet
        self._clock = clock
        self._looked_at_until = 0.0
        self._now = asyncio.Event()

    def looked_at(self, seconds: float) -> None:
        """Somebody looks, for so many *seconds* at least."""
        now = time.monotonic()
        if now >= self._looked_at_until:
            self._now.set()
        self._looked_at_until = max(self._looked_at_until, now + min(max(0.0, seconds), _LONGEST_LOOK_S))

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            self._now.clear()
            await self._guard.run(self._write, "showing")
            # Not at once again, whatever is asked: this is a statement to the database that runs the jobs.
            await asyncio.sleep(min(LOOKED_AT_EVERY_S, self._settings.renew_every_s))
            if time.monotonic() >= self._looked_at_until:
                await wait_at_most(self._now, max(0.0, self._settings.renew_every_s - LOOKED_AT_EVERY_S))

    async def _write(self) -> None:
        doing = {
            session: json.dumps(self._doing(child))
            for child in self._fleet.living()
            for session in child.sessions()[:1]
        }
        if doing:
            await self._link.call(lambda conn: tend.say_doing(conn, self._settings.schema_, doing))

    def _doing(self, child: Child) -> dict[str, object]:
        entries = child.snapshot().entries
        started = [entry for entry in entries if entry.phase is Phase.STARTED and not entry.torn]
        started.sort(key=lambda entry: entry.started_ns)
        return {
            "slot": child.slot,
            "pid": child.pid,
            "state": str(child.state),
            "running": len(started),
            "claimed": sum(entry.phase is Phase.CLAIMED for entry in entries),
            "jobs": [
                {
                    "id": entry.job_id,
                    "kind": entry.kind.replace("\0", "\ufffd"),
                    "started": round(self._clock.to_database(entry.started_ns / 1e9), 3),
                    "phase": "started",
                }
                for entry in started[:_MOST_JOBS]
            ],
        }
