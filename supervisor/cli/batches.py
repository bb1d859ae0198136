"""One order to many jobs: by ids, or all that a filter names, in batches.

    ids      --------------------------------> batches --send--> what became of each
    filter --count, ask--> ids, page by page --^

Always true: each batch is one statement, committed by itself, so a long command that is broken off has
done what it says and can be repeated. Jobs made while it works are not its own.

Elsewhere: the orders (orders.py, reschedule.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

import typer

if TYPE_CHECKING:
    from psycopg import Connection

    from supervisor.db.operate import Filter
    from supervisor.settings import Settings

BATCH = 500
COUNTED = 100_000


class Answered(NamedTuple):
    """What became of a batch: the jobs the order reached, and those it left alone. Others were not there."""

    done: Collection[int]
    left: Collection[int] = ()


class Order(NamedTuple):
    """An order: its word, whether it is for living jobs or for the dead letters, and how a batch is sent."""

    word: str
    living: bool
    send: Callable[[Connection, str, list[int]], Answered]


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
        _send(order, conn, settings.schema_, _pages(order, conn, settings.schema_, wanted, upto), total)
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


def _pages(order: Order, conn: Connection, schema: str, wanted: Filter, upto: int) -> Iterator[list[int]]:
    from supervisor.db import operate

    after = 0
    while page := operate.pick(conn, schema, wanted, living=order.living, after=after, upto=upto, limit=BATCH):
        yield page
        after = page[-1]


def _confirmed(order: Order, conn: Connection, schema: str, wanted: Filter, upto: int, yes: bool) -> int | None:
    """How many jobs the filter names, None: more than were counted; asked about unless *yes*."""
    from supervisor import exits
    from supervisor.cli import output
    from supervisor.cli.failures import CommandFailed
    from supervisor.db import operate

    most = COUNTED + 1
    found = len(operate.pick(conn, schema, wanted, living=order.living, after=0, upto=upto, limit=most))
    total = found if found <= COUNTED else None
    if found and not yes:
        count = output.count(min(found, COUNTED), total is None)
        if not sys.stdin.isatty():
            raise CommandFailed(
                f"{count} jobs fit the filter: to {order.word} them without a question, give --yes", exits.USAGE
            )
        typer.confirm(f"{order.word} {count} jobs?", abort=True, err=True)
    return total
