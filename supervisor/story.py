"""One job's story: what the database knows about it, in order, as people read it.

    row of the view `jobs` --tell--> Story(steps, unknown) --> cli/story.py, a page of the dashboard

The row is what `operate.show_job` returns; nothing else is read, so whoever has the row (a page that shows the
job anyway) calls `tell(row, now)` and needs no further statement. Each step has its time, the time since the step
before, a sentence, and where there is one the error as the database keeps it: many lines, with a handler's or a
dead worker's traceback. Texts may quote what handlers and users wrote: escape them on a page.

Always true: steps are in order of time, those to come last; nothing is invented. What happened and is not kept is
said in `unknown`: releases, snoozes, entries beyond the last ten, and when earlier runs started.

Elsewhere: what is kept (db/functions/060_settle.sql); log lines of a job (docs/logs.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from supervisor.wording import length

KEPT_ENTRIES: Final = 10  # as many as `noted` keeps
_AT_ONCE_S: Final = 1.0

_RUNS: Final = {
    "failed": "attempt {attempt} failed",
    "dead": "attempt {attempt} failed and said that no other can help",
    "crashed": "its worker died under attempt {attempt}: charged as a crash, the attempt is given back",
    "suspect": "its worker died while several jobs ran: not charged, it runs alone next",
    "interrupted": "attempt {attempt} was interrupted: not charged",
    "unknown": "a worker had no handler for it and put it back",
    "snoozed": "its handler asked for another time: not charged",
    "released": "given back before it started",
}
_ORDERS: Final = {
    "retried": "put back by an operator ({by}) from {status}: its counts are reset",
    "cancelled": "cancelled by an operator ({by})",
    "rescheduled": "moved by an operator ({by}) from {was} to {to}",
}
_DEAD: Final = {
    "attempts": "dead: all of its {max_attempts} attempts failed",
    "crashes": "dead: {max_crashes} workers died under it",
    "payload": "dead: its payload does not fit its handler",
    "cancel": "dead: its handler said that no other attempt can help",
    "unknown_kind": "dead: no worker had a handler for it in time",
    "operator": "dead: by an operator",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened to a job, or is to happen.

    Attributes:
        at: When, by the database's clock; None where the entry does not say.
        what: enqueued, due, started, failed, dead, crashed, suspect, interrupted, unknown, snoozed, released, retried,
            cancelled, rescheduled, lease, done.
        text: One sentence.
        after_s: Seconds since the step before; None for the first.
        attempt: The attempt it is about.
        run: Which claim of the job it is about, counted from 1; log lines of a run do not carry it.
        by: The database role of the operator who ordered it.
        error: What the database keeps of the error, many lines.
        to_come: It lies ahead.
    """

    at: datetime | None
    what: str
    text: str
    after_s: float | None = None
    attempt: int | None = None
    run: int | None = None
    by: str | None = None
    error: str | None = None
    to_come: bool = False


@dataclass(frozen=True, slots=True)
class Story:
    """A job's story up to now.

    Attributes:
        steps: In order.
        unknown: What is not kept of it, a sentence each.
    """

    id: int
    kind: str
    queue: str
    status: str
    steps: tuple[Step, ...]
    unknown: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """As JSON has it, but for the datetimes."""
        return asdict(self)


def tell(row: Mapping[str, Any], now: datetime) -> Story:
    """The story that *row*, of the view `jobs`, tells at *now*."""
    kept = row["errors"]
    entries = [entry for entry in (kept if isinstance(kept, list) else ()) if isinstance(entry, Mapping)]
    steps = [*_beginning(row), *map(_entry, entries), *_now(row), *_end(row)]
    dated = sorted((step for step in steps if step.at is not None), key=lambda step: step.at or now)
    ordered = [step for step in steps if step.at is None] + dated
    ordered = [replace(step, to_come=step.at is not None and step.at > now) for step in ordered]
    return Story(
        row["id"], row["kind"], row["queue"], row["status"], tuple(_spaced(ordered)), tuple(_unknown(row, entries))
    )


def _beginning(row: Mapping[str, Any]) -> Iterator[Step]:
    created, due = row["created_at"], row["run_at"]
    at_once = (due - created).total_seconds() < _AT_ONCE_S
    yield Step(created, "enqueued", f"enqueued in queue {row['queue']}" + (", due at once" if at_once else ""))
    if at_once or (row["finished_at"] is not None and due > row["finished_at"]):
        return  # the latter never came to be due
    again = " again" if row["claims"] > (row["status"] in ("running", "done")) else ""
    alone = ", to run alone" if row["suspect"] else ""
    yield Step(due, "due", f"due{again}{alone}")


def _entry(entry: Mapping[str, Any]) -> Step:
    event = str(entry.get("event"))
    facts = {"status": "dead", "by": "unknown role"} | {
        key: str(entry.get(key)) for key in ("attempt", "status", "by", "was", "to") if entry.get(key) is not None
    }
    facts.setdefault("attempt", "?")
    for name in ("was", "to"):
        if (point := _time(entry.get(name))) is not None:
            facts[name] = f"{point.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    sentence = _RUNS.get(event) or _ORDERS.get(event)
    try:
        text = event if sentence is None else sentence.format(**facts)
    except KeyError:  # an entry that something else has written
        text = event
    return Step(
        _time(entry.get("at")),
        event,
        text,
        attempt=_number(entry.get("attempt")),
        run=_number(entry.get("claims")) if event not in _ORDERS else None,
        by=str(entry["by"]) if entry.get("by") is not None else None,
        error=str(entry["error"]) if entry.get("error") else None,
    )


def _now(row: Mapping[str, Any]) -> Iterator[Step]:
    """The run that is under way, or that came to a good end."""
    if row["started_at"] is None or row["status"] not in ("running", "done"):
        return
    who = f" by worker {row['locked_by']}" if row["locked_by"] else ""
    word = "claimed" if row["status"] == "running" else "started"
    suspect = ", alone" if row["suspect"] else ""
    text = f"attempt {row['attempts']} of {row['max_attempts']} {word}{who}{suspect}"
    yield Step(row["started_at"], "started", text, attempt=row["attempts"], run=row["claims"])
    if row["status"] == "running" and row["locked_until"] is not None:
        yield Step(row["locked_until"], "lease", "its worker's lease ends, unless it is renewed")


def _end(row: Mapping[str, Any]) -> Iterator[Step]:
    at, status = row["finished_at"], row["status"]
    if at is None:
        return
    if status == "done":
        took = f" after {length((at - row['started_at']).total_seconds())}" if row["started_at"] else ""
        yield Step(at, "done", f"done{took}", attempt=row["attempts"], run=row["claims"])
    elif status == "cancelled":
        yield Step(at, "cancelled", "taken out of its queue")
    else:
        sentence = _DEAD.get(row["reason"] or "", "dead: {reason}")
        yield Step(at, "dead", sentence.format_map(row))


def _unknown(row: Mapping[str, Any], entries: list[Mapping[str, Any]]) -> Iterator[str]:
    known = {_number(entry.get("claims")) for entry in entries if str(entry.get("event")) in _RUNS} - {None}
    if row["status"] in ("running", "done"):
        known.add(row["claims"])
    runs = row["claims"]
    missing = runs - len(known & set(range(1, runs + 1))) if runs <= 10 * KEPT_ENTRIES else runs - len(known)
    if missing > 0:
        only = f" Of entries the last {KEPT_ENTRIES} are kept." if len(entries) >= KEPT_ENTRIES else ""
        yield (
            f"{missing} of its {runs} claims left no entry here: a job that is given back before it starts, or that "
            f"snoozes, leaves none.{only}"
        )
    if any(str(entry.get("event")) in _RUNS for entry in entries):
        yield "When a run started is kept of the last one only, while it runs or once it is done."


def _spaced(steps: list[Step]) -> Iterator[Step]:
    before: datetime | None = None
    for step in steps:
        if step.at is None or before is None:
            yield step
        else:
            yield replace(step, after_s=round((step.at - before).total_seconds(), 6))
        before = step.at or before


def _time(text: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
