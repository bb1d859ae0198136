"""Whether jobs were enqueued, as the caller's own transaction sees it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, overload

from pydantic_core import to_jsonable_python

from supervisor.db import trial
from supervisor.db.statements import queue_schema
from supervisor.handler import Handler
from supervisor.testing.lines import line_of

if TYPE_CHECKING:
    from supervisor.adapters.protocols import AsyncUserConn, UserConn
    from supervisor.db.steps import Row

_MOST_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class EnqueuedJob:
    """A job that waits or runs, with its keys."""

    id: int
    kind: str
    queue: str
    priority: int
    payload: dict[str, Any]
    headers: dict[str, Any] = field(repr=False)
    unique_key: str | None
    run_at: datetime = field(repr=False)
    ordering_key: str | None = None
    concurrency_key: str | None = None
    rate_key: str | None = None
    waits_for: str | None = None
    """What keeps it from being run when it is due: parents, order, concurrency, rate."""

    def __repr__(self) -> str:
        names = ["id", "kind", "queue", "priority", "payload", "unique_key"]
        names += [name for name in ("ordering_key", "concurrency_key", "rate_key", "waits_for") if getattr(self, name)]
        return f"EnqueuedJob({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


@overload
def assert_enqueued(
    conn: UserConn,
    kind: str | Handler[Any],
    payload: Mapping[str, Any] | None = None,
    *,
    count: int | None = None,
    queue: str | None = None,
    unique_key: str | None = None,
    schema: str | None = None,
) -> list[EnqueuedJob]: ...
@overload
def assert_enqueued(
    conn: AsyncUserConn,
    kind: str | Handler[Any],
    payload: Mapping[str, Any] | None = None,
    *,
    count: int | None = None,
    queue: str | None = None,
    unique_key: str | None = None,
    schema: str | None = None,
) -> Coroutine[Any, Any, list[EnqueuedJob]]: ...
def assert_enqueued(
    conn: UserConn | AsyncUserConn,
    kind: str | Handler[Any],
    payload: Mapping[str, Any] | None = None,
    *,
    count: int | None = None,
    queue: str | None = None,
    unique_key: str | None = None,
    schema: str | None = None,
) -> list[EnqueuedJob] | Coroutine[Any, Any, list[EnqueuedJob]]:
    """Fail unless jobs of *kind* wait or run, as *conn*'s transaction sees it; on an async connection, await it.

    Args:
        conn: Any connection that `enqueue` takes.
        kind: The handler's name, or the Handler.
        payload: What the job's payload must hold; it may hold more, at any depth.
        count: How many there must be; 0 for none. None: one or more.
        queue, unique_key: What the job must have.

    Returns:
        The jobs that match, oldest first.

    Raises:
        AssertionError: with what was found instead.
    """
    __tracebackhide__ = True
    wanted = _Wanted(
        kind.kind if isinstance(kind, Handler) else kind,
        None if payload is None else to_jsonable_python(dict(payload)),
        count,
        queue,
        unique_key,
    )
    where, line = queue_schema(schema), line_of(conn)
    if line.is_async:

        async def ask() -> list[EnqueuedJob]:
            __tracebackhide__ = True
            return wanted.judge(await line.run_async(lambda _: trial.listed(where)))

        return ask()
    return wanted.judge(line.run(lambda _: trial.listed(where)))


@dataclass(frozen=True, slots=True)
class _Wanted:
    kind: str
    payload: Any
    count: int | None
    queue: str | None
    unique_key: str | None

    def judge(self, rows: Sequence[Row]) -> list[EnqueuedJob]:
        __tracebackhide__ = True
        jobs = [
            EnqueuedJob(row[0], row[1], row[2], row[3], json.loads(row[4]), json.loads(row[5]), *row[6:])
            for row in rows
        ]
        found = [job for job in jobs if self._fits(job)]
        if len(found) == self.count or (self.count is None and found):
            return found
        raise AssertionError(self._told(jobs, found))

    def _fits(self, job: EnqueuedJob) -> bool:
        return (
            job.kind == self.kind
            and (self.payload is None or _holds(job.payload, self.payload))
            and self.queue in (None, job.queue)
            and self.unique_key in (None, job.unique_key)
        )

    def _told(self, jobs: list[EnqueuedJob], found: list[EnqueuedJob]) -> str:
        wanted = f"{self.kind!r}"
        for name in ("payload", "queue", "unique_key"):
            value = getattr(self, name)
            if value is not None:
                wanted += f", {name} {value!r}"
        number = "at least 1 job" if self.count is None else f"{self.count} job{'' if self.count == 1 else 's'}"
        lines = [f"expected {number} of {wanted}; found {len(found)}"]
        same = [job for job in jobs if job.kind == self.kind]
        lines += [f"  {job}" for job in same[:_MOST_SHOWN]]
        if len(same) > _MOST_SHOWN:
            lines.append(f"  and {len(same) - _MOST_SHOWN} more of this kind")
        others = Counter(job.kind for job in jobs if job.kind != self.kind)
        if others:
            lines.append("  other kinds: " + ", ".join(f"{kind!r} ({n})" for kind, n in sorted(others.items())))
        if not jobs:
            lines.append("  no job at all waits or runs, as this connection sees it")
        return "\n".join(lines)


def _holds(value: Any, part: Any) -> bool:
    """Whether *value* has all of *part*; lists must be equal in length and hold, place by place."""
    if isinstance(part, dict):
        return isinstance(value, dict) and all(key in value and _holds(value[key], part[key]) for key in part)
    if isinstance(part, list):
        return (
            isinstance(value, list)
            and len(value) == len(part)
            and all(_holds(one, other) for one, other in zip(value, part, strict=True))
        )
    return bool(type(value) is type(part) and value == part) or (_number(value) and _number(part) and value == part)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
