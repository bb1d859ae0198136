"""What the steps stand on: the lab's sizes, its database and service, and waiting for facts.

Always true: a wait has a deadline, and ends at once with the reason when the service has ended.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from supervisor.client import enqueue_many
from supervisor.db.lab import SCHEMA, LabDatabase
from supervisor.demo.figures import Report
from supervisor.demo.process import DemoFailed, LabService
from supervisor.demo.screen import Screen
from supervisor.newjob import NewJob

T = TypeVar("T")

KINDS: Final = {"email": 485, "flaky": 10, "broken": 4, "slow": 1}
JOBS: Final = sum(KINDS.values())
MAX_ATTEMPTS: Final = 3
CALLS: Final = JOBS + KINDS["flaky"] * 1 + KINDS["broken"] * (MAX_ATTEMPTS - 1)
WORKERS: Final = 4
BATCH: Final = 10
LEASE_S: Final = 0.4
REAP_EVERY_S: Final = 0.2
RETRY_BASE_S: Final = 0.02
SLOW_S: Final = 0.9

SETTINGS: Final[dict[str, object]] = {
    "schema": SCHEMA,
    "handlers": "handlers.lab",
    "processes": WORKERS,
    "concurrency": 1,
    "prefetch": BATCH - 1,
    "lease_s": LEASE_S,
    "reap_every_s": REAP_EVERY_S,
    "retry_base_s": RETRY_BASE_S,
    "health_port": "off",
    "log_format": "json",
    "name": "demo",
}
DEADLINE_S: Final = 30.0
_LOOK_EVERY_S: Final = 0.01
SLACK_S: Final = 0.6
_WARM_UP: Final = 200


@dataclass(frozen=True, slots=True)
class Ground:
    """The database, the service under demonstration, the screen, and the report so far."""

    db: LabDatabase
    service: LabService
    screen: Screen
    report: Report

    def warm_up(self) -> None:
        """Short jobs for every worker, so that each claims whole batches again."""
        ids = self.enqueue(["email"] * _WARM_UP)
        self.ended(ids, "short jobs are done")

    def enqueue(self, kinds: Sequence[str]) -> list[int]:
        """Add a job per kind, in one batch; their ids."""
        with self.db.connection.transaction():
            return [job.id for job in enqueue_many(self.db.connection, new_jobs(kinds), schema=SCHEMA)]

    def ended(self, ids: Sequence[int], what: str) -> None:
        """Wait until none of the jobs is queued or running."""
        self.until(lambda: not self.db.living(ids), what)

    def until(self, fact: Callable[[], T | None], what: str, *, alive: bool = True) -> T:
        """The fact, once it is one."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            found = fact()
            if found:
                return found
            if alive and (code := self.service.exit_code) is not None:
                raise DemoFailed(f"the service ended with code {code} before {what}: {self.service.last_words()}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"not within {DEADLINE_S:g} s: {what}; {self.service.last_words()}")
            self.screen.draw()
            time.sleep(_LOOK_EVERY_S)


def new_jobs(kinds: Sequence[str]) -> list[NewJob]:
    """A job per kind."""
    return [NewJob(kind, {"n": n}, max_attempts=MAX_ATTEMPTS) for n, kind in enumerate(kinds, 1)]
