"""What operators ask and order, one typed function per statement: one job, retry, cancel, reschedule.

Used by the command line on a plain, synchronous connection that lives as long as one command, and by the
dashboard on connections of its own (desk.py).

Always true: every statement has a time limit, and a page or a batch costs what it holds, not what the queue
holds. What is raised is a SupervisorError of one line.

Elsewhere: the state of the whole (overview.py); lists of jobs (browse.py); what workers and parents send
(jobs.py, tend.py); how it is shown (cli/, dashboard/).
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import psycopg
from psycopg import Connection, errors
from psycopg.rows import dict_row, tuple_row
from psycopg.types.json import set_json_loads

from supervisor.db.link import first_line, service_conninfo
from supervisor.db.statements import statement
from supervisor.errors import DatabaseUnavailable, SchemaMissing, SupervisorError

WINDOW: Final = 20_000
_TRIES: Final = 3


class StatementRefused(SupervisorError):
    """The server refused a command's statement and undid it.

    Attributes:
        reason: What the server said, one line.
        sqlstate: Its code.
    """

    def __init__(self, reason: str, sqlstate: str | None) -> None:
        super().__init__(reason, sqlstate)
        self.reason = reason
        self.sqlstate = sqlstate

    def __str__(self) -> str:
        code = f" ({self.sqlstate})" if self.sqlstate else ""
        if self.sqlstate == "57014":
            return (
                f"the statement was stopped at its time limit{code}: ask for less (--queue, --before, --limit), or "
                "raise SUPERVISOR_STATEMENT_TIMEOUT_S"
            )
        if self.sqlstate == "42501":
            return f"the database refused: {self.reason}{code}: grant it to this role, or use one that has it"
        return f"the database refused: {self.reason}{code}"


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs.

    Attributes:
        scheduled: Of the queued ones only those due later.
        older_s: Only those that were enqueued longer ago, in seconds.
        key: Only those with this unique, ordering, concurrency or rate key.
    """

    statuses: tuple[str, ...]
    queue: str | None = None
    kind: str | None = None
    scheduled: bool | None = None
    older_s: float | None = None
    key: str | None = None

    def parameters(self) -> dict[str, object]:
        return {
            "statuses": list(self.statuses),
            "queue": self.queue,
            "kind": self.kind,
            "scheduled": self.scheduled,
            "older_s": self.older_s,
            "key": self.key,
        }


@contextmanager
def connect(
    conninfo: str, schema: str, *, statement_timeout_s: float, connect_timeout_s: float
) -> Iterator[Connection]:
    """An autocommit connection for one command; what its statements raise leaves as a SupervisorError.

    Raises:
        DatabaseUnavailable: it could not be had, or broke.
        SchemaMissing: a statement met no schema.
        StatementRefused: the server refused a statement.
    """
    try:
        conn = psycopg.connect(service_conninfo(conninfo, "pg-supervisor command", connect_timeout_s), autocommit=True)
    except psycopg.Error as error:
        raise DatabaseUnavailable(first_line(error)) from error
    with refusals(schema), conn:
        conn.execute("select set_config('statement_timeout', %s, false)", (f"{int(statement_timeout_s * 1000)}ms",))
        yield conn


@contextmanager
def refusals(schema: str) -> Iterator[None]:
    """Turn the driver's errors into ours."""
    try:
        yield
    except (errors.InvalidSchemaName, errors.UndefinedFunction, errors.UndefinedTable, errors.UndefinedColumn) as error:
        raise SchemaMissing(schema) from error
    except psycopg.Error as error:
        if error.sqlstate is None or error.sqlstate.startswith(("08", "57P")):
            raise DatabaseUnavailable(first_line(error), unsure=True) from error
        raise StatementRefused(first_line(error), error.sqlstate) from error


def show_job(conn: Connection, schema: str, job_id: int, *, most: int | None = None) -> dict[str, Any] | None:
    """All that is known of one job, by the names of the view `jobs`; None if there is no such job.

    `payload_bytes` and `headers_bytes` are what they take up; one that takes up more than *most* is None.
    """
    with conn.cursor(row_factory=dict_row) as cur:
        set_json_loads(_shown, cur)
        return cur.execute(statement("show_job", schema), {"id": job_id, "most": most}).fetchone()


def _shown(text: str | bytes) -> Any:
    """A payload as Python knows it. What plain SQL has stored may be nested deeper than the stack is."""
    try:
        return json.loads(text)
    except (RecursionError, ValueError):
        return "(nested too deeply to show)"


def now(conn: Connection, schema: str) -> datetime:
    """The database's clock."""
    with conn.cursor(row_factory=tuple_row) as cur:
        row = cur.execute(statement("now", schema)).fetchone()
        return datetime.fromtimestamp(row[0] if row else 0.0, UTC)


def last_id(conn: Connection, schema: str) -> int:
    """The highest job id now."""
    with conn.cursor(row_factory=tuple_row) as cur:
        row = cur.execute(statement("last_id", schema)).fetchone()
        return int(row[0]) if row else 0


def pick(
    conn: Connection, schema: str, wanted: Filter, *, living: bool, after: int, upto: int, limit: int
) -> tuple[list[int], int | None]:
    """The next ids above *after* that *wanted* names, of the living jobs or of the dead letters.

    At most *limit*, and of WINDOW rows at most: a filter that fits few does not read them all in one statement.

    Returns:
        The ids, and where to go on; None: there is nothing behind.
    """
    with conn.cursor(row_factory=tuple_row) as cur:
        parameters = {**wanted.parameters(), "living": living, "after": after, "upto": upto, "limit": limit}
        row = cur.execute(statement("matching", schema), {**parameters, "window": WINDOW}).fetchone()
        return (row[0], row[1]) if row else ([], None)


def retry(conn: Connection, schema: str, ids: Sequence[int]) -> tuple[list[int], list[int]]:
    """Put dead or cancelled jobs back, counts reset; (those put back, those whose unique key is taken now).

    An id in neither was not among the dead letters.
    """
    try:
        with conn.transaction(), conn.cursor(row_factory=tuple_row) as cur:
            return [row[0] for row in cur.execute(statement("retry_job", schema), {"ids": list(ids)}).fetchall()], []
    except errors.UniqueViolation:
        if len(ids) == 1:
            return [], list(ids)
    back, taken = [], []
    for one in ids:
        done, conflict = retry(conn, schema, [one])
        back += done
        taken += conflict
    return back, taken


def release_order(conn: Connection, schema: str, ids: Sequence[int]) -> list[int]:
    """Let the next ones of dead jobs' ordering keys go; those that held one. A retry holds it again."""
    with conn.transaction(), conn.cursor(row_factory=tuple_row) as cur:
        return [row[0] for row in cur.execute(statement("release_order", schema), {"ids": list(ids)}).fetchall()]


def cancel(conn: Connection, schema: str, ids: Sequence[int], *, kill_s: float | None = None) -> dict[int, str]:
    """What became of each: cancelled, or asked (a handler is being told). A missing id neither queued nor ran.

    A handler that still runs *kill_s* seconds later is ended with its worker; None: never.

    A job claimed while the statement runs can make the server undo it as a deadlock: it is sent again.
    """
    tries = 0
    while True:
        try:
            with conn.transaction(), conn.cursor(row_factory=tuple_row) as cur:
                return dict(
                    cur.execute(statement("cancel_job", schema), {"ids": list(ids), "kill_s": kill_s}).fetchall()
                )
        except errors.DeadlockDetected:
            tries += 1
            if tries == _TRIES:
                raise


def reschedule(
    conn: Connection, schema: str, ids: Sequence[int], *, at: datetime | None = None, delay_s: float | None = None
) -> dict[int, datetime]:
    """Give queued jobs another time, *at* a point or *delay_s* from now; neither, or the past, means now.

    Returns:
        The new time of each. A missing id was not queued: it runs, it has ended, or it never was.
    """
    with conn.transaction(), conn.cursor(row_factory=tuple_row) as cur:
        parameters = {"ids": list(ids), "at": at, "delay_s": delay_s}
        return dict(cur.execute(statement("reschedule_job", schema), parameters).fetchall())
