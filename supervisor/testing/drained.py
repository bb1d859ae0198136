"""Run what is due, in the caller's transaction.

    claim (work) --> savepoint --> handler --> release --> settle --> the next, until none is due

Always true: nothing is committed. Each job is claimed and settled before the next is claimed, so what a handler
enqueues on the same connection is run too. A handler that leaves the transaction aborted has failed: what it wrote
there is undone, and the drain goes on.

Elsewhere: the statements, and how they differ from the service's (supervisor/db/trial.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, cast, overload

from supervisor.backoff import Backoff
from supervisor.db import trial
from supervisor.db.enqueue import is_async
from supervisor.db.statements import queue_schema
from supervisor.keys import MAX_DELAY_S, check_int, check_seconds
from supervisor.outcome import Outcome
from supervisor.payload import check_name
from supervisor.testing.lines import line_of
from supervisor.testing.perform import Performance
from supervisor.testing.ran import Ran
from supervisor.worker.results import settlement_of

if TYPE_CHECKING:
    from supervisor.adapters import Adapter
    from supervisor.adapters.protocols import AsyncUserConn, UserConn
    from supervisor.context import JobTransaction
    from supervisor.db.jobs import ClaimedJob, Settled
    from supervisor.db.steps import Steps
    from supervisor.worker.run import Run

_ABORTED: Final = Outcome(
    "failed",
    "the handler returned and left the transaction aborted: an error of a statement was caught, and not undone "
    "by a savepoint. What it wrote there was undone",
    None,
    "error",
)

Ask = Callable[[bool], "Steps[Any]"]


@overload
def drain(
    conn: UserConn,
    *,
    queue: str | None = None,
    ahead: timedelta | float = 0,
    limit: int = 1000,
    schema: str | None = None,
) -> list[Ran]: ...
@overload
def drain(
    conn: AsyncUserConn,
    *,
    queue: str | None = None,
    ahead: timedelta | float = 0,
    limit: int = 1000,
    schema: str | None = None,
) -> Coroutine[Any, Any, list[Ran]]: ...
def drain(
    conn: UserConn | AsyncUserConn,
    *,
    queue: str | None = None,
    ahead: timedelta | float = 0,
    limit: int = 1000,
    schema: str | None = None,
) -> list[Ran] | Coroutine[Any, Any, list[Ran]]:
    """Run the jobs that are due, one after the other, in *conn*'s transaction; on an async connection, await it.

    Args:
        conn: Any connection that `enqueue` takes.
        queue: Only this one.
        ahead: Seconds or a timedelta: jobs that will be due within it are due now. Retries that come of this
            drain keep their wait.
        limit: How many runs there may be.

    Returns:
        What became of each run, in order.

    Raises:
        AssertionError: *limit* runs were made and more jobs are due: they may be enqueueing each other for ever.
    """
    where, line = queue_schema(schema), line_of(conn)
    if queue is not None:
        check_name("queue", queue)
    seconds = check_seconds("ahead", ahead, MAX_DELAY_S, zero=True)
    check_int("limit", limit, 1, 1_000_000)
    steps = _draining(line, where, queue, seconds, limit)
    if line.is_async:

        async def awaited() -> list[Ran]:
            try:
                wish = next(steps)
                while True:
                    if isinstance(wish, Performance):
                        await wish.perform_async()
                        wish = steps.send(None)
                    else:
                        wish = steps.send(await line.run_async(wish))
            except StopIteration as ended:
                return cast("list[Ran]", ended.value)

        return awaited()
    try:
        wish = next(steps)
        while True:
            if isinstance(wish, Performance):
                wish.perform()
                wish = steps.send(None)
            else:
                wish = steps.send(line.run(wish))
    except StopIteration as ended:
        return cast("list[Ran]", ended.value)


def _draining(
    line: Adapter, schema: str, queue: str | None, ahead_s: float, limit: int
) -> Generator[Ask | Performance, Any, list[Ran]]:
    session = random.getrandbits(63)
    ran: list[Ran] = []
    yield lambda _: trial.start(schema, session)
    if ahead_s:
        yield lambda _: trial.bring_forward(schema, ahead_s, queue)
    while True:
        job: ClaimedJob | None = None
        if len(ran) < limit:
            job = yield lambda _: trial.claim(schema, session, queue)
        if job is None:
            break
        guarded: bool = yield trial.guard
        performance = Performance(job, partial(_transaction, line))
        yield performance
        run = performance.run
        kept: bool = True
        if guarded:
            kept = yield lambda _: trial.unguard()
        if run.finished:  # whatever it raised after that
            run.outcome = Outcome.done()
        if not kept and run.outcome is not None and run.outcome.event == "done":
            run.outcome = _ABORTED
        item = settlement_of(run, Backoff())
        settled: Settled | None = yield partial(_settle, schema, session, item)
        if settled is None:
            raise AssertionError(f"job {job.id} of {job.kind!r} was taken from the drain while it ran: by its handler?")
        ran.append(_ran(performance, item.outcome, settled))
    yield lambda _: trial.end(schema, session)
    if len(ran) == limit:
        left = yield lambda _: trial.lanes(schema, queue)
        if left:
            raise AssertionError(
                f"drain made {limit} runs and more jobs are due in queue {left[0].queue!r}: do jobs enqueue "
                f"each other? The last were {', '.join(repr(one.kind) for one in ran[-3:])}; limit=... allows more"
            )
    return ran


def _settle(schema: str, session: int, item: Any, _: bool) -> Steps[Settled | None]:
    return trial.settle(schema, session, item)


def _ran(performance: Performance, outcome: Outcome, settled: Settled) -> Ran:
    job = performance.run.job
    reason = outcome.reason
    if settled.status == "cancelled":
        reason = "operator"
    elif settled.status == "dead" and outcome.event == "failed":
        reason = "attempts"
    due = settled.due_in_s
    return Ran(
        id=job.id,
        kind=job.kind,
        attempt=job.attempt,
        event=outcome.event,
        status=settled.status,
        reason=reason,
        error=outcome.error,
        due_in_s=due,
        due_between_s=None if due is None else (due, due),
        exception=performance.exception,
    )


def _transaction(line: Adapter, run: Run) -> JobTransaction:
    """What `job.transaction()` gives in a drain: the caller's connection, as psycopg has it, on a savepoint."""
    conn = line.driver
    if is_async(conn) is None:
        raise RuntimeError(
            f"{run.job.kind} asks for job.transaction(), which gives a psycopg connection: "
            f"there is none below this connection, but {type(conn).__module__.split('.')[0]}"
        )
    return cast("JobTransaction", _Savepoint(conn, run))


class _Savepoint:
    """The caller's connection; with the block's end the job has finished, as by its acknowledgement there."""

    def __init__(self, conn: Any, run: Run) -> None:
        self._conn = conn
        self._run = run
        self._block: AbstractContextManager[Any] | AbstractAsyncContextManager[Any] | None = None

    def __enter__(self) -> Any:
        if is_async(self._conn):
            raise RuntimeError("a plain handler's job.transaction() needs a drain on a sync connection")
        self._block = block = cast("AbstractContextManager[Any]", self._conn.transaction())
        block.__enter__()
        return self._conn

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        swallowed = cast("AbstractContextManager[Any]", self._block).__exit__(kind, error, trace)
        self._run.finished = error is None
        return swallowed

    async def __aenter__(self) -> Any:
        if not is_async(self._conn):
            raise RuntimeError("an async handler's job.transaction() needs a drain on an async connection")
        self._block = block = cast("AbstractAsyncContextManager[Any]", self._conn.transaction())
        await block.__aenter__()
        return self._conn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        swallowed = await cast("AbstractAsyncContextManager[Any]", self._block).__aexit__(kind, error, trace)
        self._run.finished = error is None
        return swallowed
