"""Claiming and settling one job at a time in the transaction of a test, on a connection of any library.

    start --> bring_forward --> (let_in --> claim --> guard --> the handler --> unguard --> settle)* --> left --> end

The statements that move jobs are the service's own: `work` claims, `settle` ends. What differs: one job per claim,
every lane found by a scan, no rate is waited for, each run on a savepoint of its own, a session that nobody renews
and that is over with the transaction. Done runs are settled like the others, not acknowledged with the next claim.

Elsewhere: sending the steps (steps.py, plain.py, supervisor/adapters); running handlers (supervisor/testing).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from supervisor.db.jobs import EPOCH, ClaimedJob, Lane, Settled, numbers
from supervisor.db.statements import render, statement
from supervisor.db.steps import Step, Steps, sent

if TYPE_CHECKING:
    from supervisor.db.jobs import Settlement
    from supervisor.db.steps import Row

_LEASE_S: Final = 3600.0
_KEEP_ALL: Final = 2
_UNKNOWN_LIMIT_S: Final = 86_400.0
_NAMED: Final = re.compile(r"%\((\w+)\)s(::\w+\[\])?")

# The best lane first, as workers do within a queue; of several queues the first by name.
_LANES: Final = """
select distinct j.queue, j.priority
  from {schema}.job j
 where j.lease is null and j.run_at <= clock_timestamp() and (%s::text is null or j.queue = %s::text)
 order by j.priority, j.queue
"""

_FORWARD: Final = """
update {schema}.job j
   set run_at = clock_timestamp()
 where j.lease is null and j.run_at > clock_timestamp()
   and j.run_at <= clock_timestamp() + make_interval(secs => %s::float8)
   and (%s::text is null or j.queue = %s::text)
"""

_GATES_FORWARD: Final = """
with due as (
    update {schema}.gated g
       set due_at = clock_timestamp()
     where g.gate between 1 and 4 and g.due_at > clock_timestamp()
       and g.due_at <= clock_timestamp() + make_interval(secs => %s::float8))
update {schema}.gate_note n
   set at = clock_timestamp()
 where n.at > clock_timestamp() and n.at <= clock_timestamp() + make_interval(secs => %s::float8)
"""

# A run takes no time here, so nothing is started too soon.
_UNPACED: Final = """
with started as (delete from {schema}.rate s)
update {schema}.gate_note n
   set at = clock_timestamp()
 where n.gate = 4 and n.at > clock_timestamp()
   and exists (select from {schema}.gated g where g.rate_key = n.key and g.gate = 4 and g.due_at <= clock_timestamp())
"""

_LET_IN: Final = "select looked from {schema}.pass_notes('-infinity', 1000)"

_LISTED: Final = """
select j.id, j.kind, j.queue, j.priority::int, j.payload::text, j.headers::text, coalesce(j.unique_key, h.unique_key),
       case when g.gate is null then j.run_at else g.due_at end, g.ordering_key, g.concurrency_key, g.rate_key,
       (array['parents', 'order', 'concurrency', 'rate'])[g.gate]
  from {schema}.job j
  left join {schema}.unique_hold h on h.job_id = j.id
  left join {schema}.gated g on j.gated and g.job_id = j.id
 order by j.id
"""


def start(schema: str, session: int) -> Steps[None]:
    """Open a session for the claims."""
    yield from _named(schema, "open_session", session=session, parent=None, name="test", lease_s=_LEASE_S)


def end(schema: str, session: int) -> Steps[None]:
    """Close it: a commit leaves no session that could be taken for a living one."""
    yield from _named(schema, "close_session", session=session)


def bring_forward(schema: str, seconds: float, queue: str | None) -> Steps[None]:
    """Make what will be due within *seconds* due now."""
    yield from sent(schema, Step(render(_FORWARD.strip(), schema), (seconds, queue, queue)))
    yield from sent(schema, Step(render(_GATES_FORWARD.strip(), schema), (seconds, seconds)))


def let_in(schema: str) -> Steps[None]:
    """Let in what waits at gates and may go now."""
    yield from sent(schema, Step(render(_UNPACED.strip(), schema)))
    while True:
        rows = yield from sent(schema, Step(render(_LET_IN, schema)))
        if not rows[0][0]:
            return


def lanes(schema: str, queue: str | None) -> Steps[list[Lane]]:
    """The lanes that have due jobs."""
    rows = yield from sent(schema, Step(render(_LANES.strip(), schema), (queue, queue)))
    return [Lane(row[0], row[1]) for row in rows]


def claim(schema: str, session: int, queue: str | None) -> Steps[ClaimedJob | None]:
    """Claim the next due job; None when there is none."""
    yield from let_in(schema)
    found = yield from lanes(schema, queue)
    if not found:
        return None
    rows = yield from _named(
        schema,
        "work",
        session=session,
        ids="{}",
        claims="{}",
        took="{}",
        keep=_KEEP_ALL,
        queues=array(lane.queue for lane in found),
        priorities=numbers(lane.priority for lane in found),
        mark_at=array(EPOCH for _ in found),
        mark_id=numbers(0 for _ in found),
        limit=1,
        lookback_s=0.0,
        hands=1,
        tids=None,
    )
    for row in rows:
        if row[0] is not None:
            lane = found[row[0] - 1]
            return ClaimedJob(
                row[1], row[2], row[3], lane.queue, lane.priority, row[4], row[5], row[6], row[7], row[8], row[9],
                row[10], row[11], row[12],
            )  # fmt: skip
    return None


def settle(schema: str, session: int, item: Settlement) -> Steps[Settled | None]:
    """Store how a run ended; None when its job is no longer held."""
    outcome = item.outcome
    rows = yield from _named(
        schema,
        "settle",
        session=session,
        ids=numbers([item.id]),
        claims=numbers([item.token]),
        events=array([outcome.event]),
        errors=array([outcome.error]),
        reasons=array([outcome.reason]),
        delays_s=numbers([outcome.delay]),
        bases_s=numbers([item.base_s]),
        caps_s=numbers([item.cap_s]),
        keep=_KEEP_ALL,
        limit_s=_UNKNOWN_LIMIT_S,
    )
    return Settled(*rows[0]) if rows else None


def guard(is_open: bool) -> Steps[bool]:
    """A savepoint, so that what a handler breaks in this transaction can be undone. Whether there is one."""
    if is_open:
        yield Step("savepoint supervisor_run")
    return is_open


def unguard() -> Steps[bool]:
    """Keep what was written since `guard`; in a transaction that is aborted, undo it. Whether it was kept."""
    try:
        yield Step("release savepoint supervisor_run")
    except Exception:  # aborted: the only way on is back
        yield Step("rollback to savepoint supervisor_run")
        yield Step("release savepoint supervisor_run")
        return False
    return True


def listed(schema: str) -> Steps[list[Row]]:
    """Every job that is queued or running: the fields of testing's EnqueuedJob, in their order."""
    return (yield from sent(schema, Step(render(_LISTED.strip(), schema))))


def array(values: Iterable[str | None]) -> str:
    """An array literal of texts."""
    return "{" + ",".join("NULL" if value is None else _quoted(value) for value in values) + "}"


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _named(schema: str, name: str, /, **arguments: Any) -> Steps[list[Row]]:
    text, names = _positional(name, schema)
    return (yield from sent(schema, Step(text, tuple(arguments[one] for one in names))))


@cache
def _positional(name: str, schema: str) -> tuple[str, tuple[str, ...]]:
    """The statement sql/*name*.sql with its parameters by position; arrays are texts that the server casts."""
    text = statement(name, schema).decode()
    names = tuple(found.group(1) for found in _NAMED.finditer(text))
    return _NAMED.sub(lambda found: f"%s::text{found.group(2)}" if found.group(2) else "%s", text), names
