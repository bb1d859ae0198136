"""What running jobs say of themselves, stored in batches: the last word of each, once a second at most.

    job.progress() --say, any thread--> the last word per run --tick, at most once a second--> one statement

Always true: saying waits for nobody. A word is stored under its run's fence or not at all. One statement is under
way at a time; words that it could not store are tried again unless newer ones have come, or their runs have ended.

Elsewhere: what may be said (context.py); the statement (functions/055_results.sql).
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from supervisor.db import jobs
from supervisor.db.link import DatabaseError, Link, first_line
from supervisor.errors import DatabaseUnavailable
from supervisor.log import Repeats, get_logger
from supervisor.worker.run import Run

_EVERY_S: Final = 1.0
_MOST: Final = 500

log = get_logger("worker")


class Progress:
    """The last words of one worker's runs."""

    def __init__(self, link: Link, schema: str, session: Callable[[], int]) -> None:
        self._link = link
        self._schema = schema
        self._session = session
        self._said: dict[int, tuple[Run, float, str | None]] = {}
        self._stored: dict[int, tuple[int, float, str | None]] = {}
        self._sending: asyncio.Task[None] | None = None
        self._sent_at = -_EVERY_S
        self._repeats = Repeats()

    def say(self, run: Run, share: float, note: str | None) -> None:
        """Keep *run*'s last word. Called from threads too: one assignment."""
        self._said[run.job.id] = (run, share, note)

    def tick(self) -> None:
        """A few times a second: store what is new, if it is time."""
        if not self._said or self._sending is not None or time.monotonic() - self._sent_at < _EVERY_S:
            return
        self._sent_at = time.monotonic()
        self._sending = asyncio.get_running_loop().create_task(self._send())
        self._sending.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._sending = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("progress.failed", error=repr(error), exc_info=error)

    async def _send(self) -> None:
        batch: list[tuple[Run, float, str | None]] = []
        while self._said and len(batch) < _MOST:
            job_id, word = self._said.popitem()
            run, share, note = word
            told = (run.job.token, share, note)
            if run.outcome is None and not run.lost and self._stored.get(job_id) != told:
                batch.append(word)
        self._stored = {run.job.id: (run.job.token, share, note) for run, share, note in batch}
        if not batch:
            return
        words = [(run.job.id, run.job.token, share, note) for run, share, note in batch]
        try:
            await self._link.call(
                lambda conn: jobs.say_progress(conn, self._schema, session=self._session(), words=words)
            )
        except DatabaseUnavailable as error:
            self._stored = {}
            for word in batch:
                self._said.setdefault(word[0].job.id, word)
            self._repeats.tell(log.warning, "progress.delayed", reason=error.reason, runs=len(batch))
        except DatabaseError as error:
            self._repeats.tell(log.warning, "progress.refused", reason=first_line(error), runs=len(batch))
