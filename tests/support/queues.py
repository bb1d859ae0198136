"""Settings of queues, set and counted as a supervisor does it, for tests that talk to the database alone."""

from supervisor.db import queues
from supervisor.db.queues import QueueSettings
from tests.support.database import Database


def settings(db: Database) -> list[QueueSettings]:
    """Every queue that has settings."""
    with db.connect() as conn:
        return queues.settings(conn, db.schema)


def limit(db: Database, most: int, queue: str = "q") -> None:
    """Set a limit and count what runs."""
    db.rows("select supervisor.set_queue(%s, max_running => %s)", [queue, most])
    count(db)


def count(db: Database) -> list[bool]:
    """Count what is to be counted; for each queue whether it was still to be."""
    return [counted(db, one) for one in settings(db) if one.max_running and not one.counted]


def counted(db: Database, queue: QueueSettings) -> bool:
    """Count what runs of *queue*, for the limit that it had then; whether that was still to be done."""
    counting = queues.Counting(queue)
    with db.connect() as conn:
        while (done := counting.step(conn, db.schema)) is None:
            pass
    return done
