"""One order to many jobs: by ids, or all that a filter names, in batches.

    ids      --------------------------------> batches --send--> what became of each
    filter --count, ask--> ids, page by page --^
           --count------> said, and nothing done                 (--dry-run)

Always true: each batch is one statement, committed by itself, so a long command that is broken off has
done what it says and can be repeated. Jobs made while it works are not its own. No statement looks at more rows
than `operate.WINDOW`, however few of them fit.

Elsewhere: the orders (orders.py); what comes before and after the batches (ordering.py).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import typer

if TYPE_CHECKING:
    from psycopg import Connection
    from rich.console import Console

    from supervisor.db.operate import Filter
    from supervisor.settings import Settings

BATCH = 500
COUNTED = 100_000
_COUNT_PAGE = 10_000
_NAMED = 5


class Answered(NamedTuple):
    """What became of a batch: the jobs the order reached, and those it left alone. Others were not there."""

    done: Collection[int]
    left: Collection[int] = ()


class Order(ABC):
    """What is done to many jobs, and told of it; a class for each order, an object for each time it is given.

    Attributes:
        word: As in "retry 41 jobs?".
        statuses: The states of jobs that it is for.
        unfit: What is said of jobs that were named and not reached, before their ids.
        why_left: What is said of those in `left`, after their ids.
        left: Jobs that it found and left alone.
    """

    word: ClassVar[str]
    statuses: ClassVar[tuple[str, ...]]
    unfit: ClassVar[str]
    why_left: ClassVar[str]

    def __init__(self) -> None:
        self.left: list[int] = []

    @property
    def living(self) -> bool:
        """Whether it is for jobs that have not ended, or for the dead letters."""
        return "queued" in self.statuses

    @abstractmethod
    def send(self, conn: Connection, schema: str, batch: list[int]) -> Answered:
        """Do it to *batch*, in a transaction of its own."""

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """What was done, for programs."""

    @abstractmethod
    def tell(self, out: Console) -> None:
        """The same for people."""


class Found(NamedTuple):
    """The jobs that a filter names: how many, the first few, whether there are more than were counted."""

    total: int
    first: list[int]
    more: bool

    @property
    def words(self) -> str:
        """The count, and which."""
        from supervisor.cli import output

        some = f" (ids {', '.join(map(str, self.first))}{', ...' if self.total > len(self.first) else ''})"
        return f"{output.count(self.total, self.more)} jobs{some if self.first else ''}"


def look(order: Order, settings: Settings, wanted: Filter) -> Found:
    """What *order* would reach."""
    from supervisor.cli.service import connection
    from supervisor.db import operate

    with connection(settings) as conn:
        return _found(order, conn, settings.schema_, wanted, operate.last_id(conn, settings.schema_))


def carry_out(
    order: Order, settings: Settings, ids: list[int] | None, wanted: Filter | None, *, yes: bool
) -> list[int]:
    """Give *order* to the jobs of *ids*, or to all that *wanted* names, after a question unless *yes*.

    Returns:
        Of *ids*, those that were not there. Of a filter's, jobs that ended meanwhile are nobody's error.
    """
    from supervisor.cli.service import connection
    from supervisor.db import operate

    with connection(settings) as conn:
        if wanted is None:
            distinct = sorted(set(ids or ()))
            return _send(order, conn, settings.schema_, _slices(distinct), len(distinct))
        upto = operate.last_id(conn, settings.schema_)
        total = _confirmed(order, conn, settings.schema_, wanted, upto, yes)
        # The queued ones first: else each running one that is told to stop makes room for one of them. What has gone
        # back to the queue meanwhile is found with the running ones.
        both = {"queued", "running"} <= set(wanted.statuses)
        passes = [replace(wanted, statuses=("queued",)), wanted] if both else [wanted]
        pages = (page for one in passes for page in _pages(order, conn, settings.schema_, one, upto, BATCH))
        _send(order, conn, settings.schema_, pages, total)
        return []


def _send(order: Order, conn: Connection, schema: str, batches: Iterator[list[int]], total: int | None) -> list[int]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from supervisor.cli import output
    from supervisor.cli.failures import say

    screen = output.console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = screen.is_terminal and (total is None or total > BATCH)
    reached, missing = 0, []
    with Progress(*columns, console=screen, transient=True, disable=not shown) as progress:
        bar = progress.add_task(order.word, total=total)
        try:
            for batch in batches:
                answer = order.send(conn, schema, batch)
                reached += len(answer.done)
                missing += sorted(set(batch).difference(answer.done, answer.left))
                progress.advance(bar, len(batch))
        except BaseException:
            progress.stop()
            say(f"broken off after {output.count(reached)} jobs: those stand")
            raise
    return missing


def _slices(ids: list[int]) -> Iterator[list[int]]:
    return (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))


def _pages(order: Order, conn: Connection, schema: str, wanted: Filter, upto: int, limit: int) -> Iterator[list[int]]:
    from supervisor.db import operate

    after: int | None = 0
    while after is not None:
        page, after = operate.pick(conn, schema, wanted, living=order.living, after=after, upto=upto, limit=limit)
        if page:
            yield page


def _found(order: Order, conn: Connection, schema: str, wanted: Filter, upto: int) -> Found:
    count = 0
    first: list[int] = []
    for page in _pages(order, conn, schema, wanted, upto, _COUNT_PAGE):
        first = first or page[:_NAMED]
        count += len(page)
        if count > COUNTED:
            return Found(COUNTED, first, True)
    return Found(count, first, False)


def _confirmed(order: Order, conn: Connection, schema: str, wanted: Filter, upto: int, yes: bool) -> int | None:
    """How many jobs the filter names, None: more than were counted; asked about unless *yes*."""
    from supervisor import exits
    from supervisor.cli.failures import CommandFailed

    found = _found(order, conn, schema, wanted, upto)
    if found.total and not yes:
        if not sys.stdin.isatty():
            raise CommandFailed(
                f"{found.words} fit the filter: to {order.word} them without a question, give --yes", exits.USAGE
            )
        typer.confirm(f"{order.word} {found.words}?", abort=True, err=True)
    return None if found.more else found.total
