"""Starts of jobs, noted independently of the service: when each claim was, by the database's clock.

starts_of(db)   a trigger of the test's own writes each started_at down, of runs that are killed too
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.support.database import Database


@dataclass(frozen=True)
class Starts:
    """What was claimed of one queue."""

    db: Database
    queue: str

    def times(self) -> list[int]:
        """When, in microseconds, in order."""
        rows = self.db.rows(
            "select (extract(epoch from at) * 1000000)::bigint from claimed where queue = %s order by at", [self.queue]
        )
        return [row[0] for row in rows]


@contextmanager
def starts_of(db: Database, queue: str = "q") -> Iterator[Starts]:
    """Note each claim of *queue* from now on."""
    db.execute("create table claimed (queue text, job_id bigint, at timestamptz)")
    db.execute("create index on claimed (queue, at)")
    db.execute(
        "create function note_claim() returns trigger language plpgsql as $fn$"
        " begin insert into claimed values (new.queue, new.id, new.started_at); return null; end $fn$"
    )
    db.execute(
        "create trigger note_claim after update on supervisor.job for each row"
        " when (new.lease is not null and old.lease is null) execute function note_claim()"
    )
    try:
        yield Starts(db, queue)
    finally:
        db.execute("drop trigger note_claim on supervisor.job")


def most_in_a_period(times: Sequence[int], period: int) -> int:
    """The most of *times* that lie in one period, both of its ends included."""
    times = sorted(times)
    return max((bisect_right(times, first + period) - index for index, first in enumerate(times)), default=0)
