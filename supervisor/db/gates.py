"""What waits at gates, for people: how many jobs at each, and what one job waits for.

    waiting   by gate, and whether somebody looks             metrics, doctor, status, dashboard
    of_job    who goes before one job, who holds its key      a job's page

Always true: every count stops at a limit. Under an old snapshot the rows of jobs that have gone on are walked over, so
counting is given up after a while: then nothing is known, which is not the same as nothing waits.

Elsewhere: who may go (functions/046_gate.sql); what the doctor asks (examine.py).
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from psycopg import AsyncConnection, Connection, errors
from psycopg.rows import class_row, tuple_row

from supervisor.db.overview import PLANS
from supervisor.db.statements import statement
from supervisor.wording import count, rate

GATES: Final = ("parents", "order", "concurrency", "rate")
"""In the order in which a job passes them."""
MOST_COUNTED: Final = 10_000
"""The most jobs looked at per gate."""
PATIENCE_S: Final = 1.0
_MOST_AHEAD: Final = 1_000
_SOME: Final = 10


class Gate(NamedTuple):
    """Jobs that wait at one gate, as far as was counted. `oldest_s`: how long the first of these has been due."""

    jobs: int
    oldest_s: float


class Gates(NamedTuple):
    """By gate. `late_s`: for how long a gate should have been looked at; 0: none."""

    by_gate: dict[str, Gate]
    late_s: float
    limit: int = MOST_COUNTED


class JobGate(NamedTuple):
    """What one job waits for, and what it holds: see sql/job_gate.sql. Counts stop at 1,000."""

    gate: str | None
    holds: bool
    ordering_key: str | None
    concurrency_key: str | None
    concurrency_limit: int | None
    rate_key: str | None
    rate_limit: int | None
    rate_period_s: float | None
    ahead: int | None
    behind: int | None
    taken: int | None
    holders: list[int]
    parents: list[list[Any]] | None
    parents_all: int | None
    children: list[int]

    @property
    def words(self) -> str | None:
        """What it waits for, in words without ids; None: it waits at no gate."""
        before = "none waits before it" if not self.ahead else f"{_count(self.ahead)} wait before it"
        if self.gate == "parents":
            return "jobs that it comes after" + ("" if self.parents else ": a supervisor is about to let it go on")
        if self.gate == "order":
            return f"its turn in its ordering key: {before}"
        if self.gate == "concurrency":
            taken = f"{_count(self.taken or 0)} of {self.concurrency_limit} places are taken"
            return f"room in its concurrency key: {taken}, {before}"
        if self.gate == "rate":
            return f"its time in its rate key, {rate(self.rate_limit, self.rate_period_s)}: {before}"
        return None

    @property
    def whom(self) -> str | None:
        """Whose end it waits for, as far as they are named."""
        if self.parents:
            named = ", ".join(f"job {one} ({status})" for one, status, _ in self.parents)
            more = (self.parents_all or 0) - len(self.parents)
            return f"{named} and {_count(more)} more" if more > 0 else named
        held = ", ".join(f"job {one}" for one in self.holders)
        return f"{held} {'has' if len(self.holders) == 1 else 'have'} the key" if held else None


def _count(number: int) -> str:
    return count(number, number >= _MOST_AHEAD)


def waiting(conn: Connection, schema: str, *, patience_s: float = PATIENCE_S) -> Gates | None:
    """What waits at each gate; None where counting took too long."""
    try:
        with conn.transaction(), conn.cursor(row_factory=tuple_row) as cur:
            cur.execute(_PLANS, (_milliseconds(patience_s),))
            return _gates(cur.execute(statement("gates", schema), {"limit": MOST_COUNTED}).fetchall())
    except errors.QueryCanceled:
        return None


async def waiting_async(conn: AsyncConnection, schema: str, *, patience_s: float = PATIENCE_S) -> Gates | None:
    """As `waiting`."""
    try:
        async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cur:
            await cur.execute(_PLANS, (_milliseconds(patience_s),))
            return _gates(await (await cur.execute(statement("gates", schema), {"limit": MOST_COUNTED})).fetchall())
    except errors.QueryCanceled:
        return None


def of_job(conn: Connection, schema: str, job_id: int) -> JobGate | None:
    """What the job waits for; None for one without gates that nobody waits for."""
    with conn.cursor(row_factory=class_row(JobGate)) as cur:
        parameters = {"id": job_id, "most": _MOST_AHEAD, "some": _SOME}
        return cur.execute(statement("job_gate", schema), parameters).fetchone()


_PLANS: Final = PLANS + ", set_config('statement_timeout', %s, true)"


def _milliseconds(seconds: float) -> str:
    return f"{max(1, int(seconds * 1000))}ms"


def _gates(rows: Iterable[Any]) -> Gates:
    found = {gate: (jobs, age) for gate, jobs, age in rows}
    return Gates({gate: Gate(found[gate][0], found[gate][1] or 0.0) for gate in GATES}, found["notes"][1] or 0.0)
