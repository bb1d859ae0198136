"""`supervisor jobs retry` and `cancel`: by ids, or all that a filter names, in batches.

    ids      --------------------------------> batches --> counts
    filter --count, ask--> ids, page by page --^

Always true: each batch is one statement, committed by itself, so a long command that is broken off has
done what it says and can be repeated. Jobs made while it works are not its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from supervisor.cli.jobs import chosen
from supervisor.cli.options import DatabaseUrl, Json, KindFilter, QueueFilter, Schema, Yes

if TYPE_CHECKING:
    from psycopg import Connection

    from supervisor.db.operate import Filter
    from supervisor.settings import Settings

BATCH = 500
COUNTED = 100_000

Ids = Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="The jobs.", show_default=False)]


@dataclass(slots=True)
class Tally:
    """What became of the jobs of one command."""

    retried: int = 0
    cancelled: int = 0
    asked: int = 0
    taken: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)


def retry(
    ids: Ids = None,
    status: Annotated[
        list[str] | None, typer.Option("--status", "-s", help="dead or cancelled; repeatable.", show_default=False)
    ] = None,
    queue: QueueFilter = None,
    kind: KindFilter = None,
    yes: Yes = False,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """Put dead or cancelled jobs back into their queues, with their counts reset."""
    from supervisor.cli import output
    from supervisor.cli.failures import say
    from supervisor.cli.service import load

    wanted = _wanted(ids, status, ("dead", "cancelled"), queue, kind)
    tally = _order("retry", load(database_url=database_url, schema=schema), ids, wanted, yes)
    if as_json:
        document = {"retried": tally.retried, "unique_key_taken": tally.taken, "missing": tally.missing}
        output.print_json(document)
    else:
        output.console().print(f"{output.count(tally.retried)} put back", style="green" if tally.retried else "yellow")
        if tally.taken:
            say(f"left alone: {_some(tally.taken)}: a living job holds their unique key; cancel that one first")
        if tally.missing:
            say(f"neither dead nor cancelled: {_some(tally.missing)}")
    _end(tally)


def cancel(
    ids: Ids = None,
    status: Annotated[
        list[str] | None,
        typer.Option("--status", "-s", help="queued, running or scheduled; repeatable.", show_default=False),
    ] = None,
    queue: QueueFilter = None,
    kind: KindFilter = None,
    yes: Yes = False,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """Take jobs out of their queues; the handlers of running ones are told to stop."""
    from supervisor.cli import output
    from supervisor.cli.failures import say
    from supervisor.cli.service import load

    wanted = _wanted(ids, status, ("queued", "running"), queue, kind)
    tally = _order("cancel", load(database_url=database_url, schema=schema), ids, wanted, yes)
    if as_json:
        output.print_json({"cancelled": tally.cancelled, "asked": tally.asked, "missing": tally.missing})
    else:
        told = f", {output.count(tally.asked)} running and told to stop" if tally.asked else ""
        output.console().print(
            f"{output.count(tally.cancelled)} cancelled{told}",
            style="green" if tally.cancelled + tally.asked else "yellow",
        )
        if tally.missing:
            say(f"neither queued nor running: {_some(tally.missing)}")
    _end(tally)


def _wanted(
    ids: list[int] | None, status: list[str] | None, allowed: tuple[str, ...], queue: str | None, kind: str | None
) -> Filter | None:
    from supervisor.cli.failures import wrong_use

    filtered = bool(status) or queue is not None or kind is not None
    if filtered == bool(ids):
        raise wrong_use("[ID]...", "or a filter of --status, --queue and --kind is needed: one of the two")
    return chosen(status, allowed, queue, kind) if filtered else None


def _end(tally: Tally) -> None:
    from supervisor import exits

    if tally.missing or tally.taken:
        raise typer.Exit(exits.FAILED)


def _some(ids: list[int]) -> str:
    more = f" and {len(ids) - 10} more" if len(ids) > 10 else ""
    return ("job " if len(ids) == 1 else "jobs ") + ", ".join(map(str, ids[:10])) + more


def _order(what: str, settings: Settings, ids: list[int] | None, wanted: Filter | None, yes: bool) -> Tally:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from supervisor.cli import output
    from supervisor.cli.failures import say
    from supervisor.cli.service import connection
    from supervisor.db import operate

    tally = Tally()
    with connection(settings) as conn:
        if wanted is None:
            distinct = sorted(set(ids or ()))
            total: int | None = len(distinct)
            batches: Iterator[list[int]] = (distinct[i : i + BATCH] for i in range(0, len(distinct), BATCH))
        else:
            upto = operate.last_id(conn, settings.schema_)
            found = len(
                operate.pick(
                    conn, settings.schema_, wanted, living=what == "cancel", after=0, upto=upto, limit=COUNTED + 1
                )
            )
            total = found if found <= COUNTED else None
            if found and not yes:
                _ask(what, output.count(min(found, COUNTED), total is None))
            batches = _pages(conn, settings.schema_, wanted, what == "cancel", upto)
        screen = output.console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        shown = screen.is_terminal and (total is None or total > BATCH)
        with Progress(*columns, console=screen, transient=True, disable=not shown) as progress:
            bar = progress.add_task(what, total=total)
            try:
                for batch in batches:
                    _apply(what, conn, settings.schema_, batch, tally, by_id=wanted is None)
                    progress.advance(bar, len(batch))
            except BaseException:
                progress.stop()
                say(f"broken off after {output.count(tally.retried + tally.cancelled + tally.asked)} jobs: those stand")
                raise
    return tally


def _apply(what: str, conn: Connection, schema: str, batch: list[int], tally: Tally, *, by_id: bool) -> None:
    from supervisor.db import operate

    if what == "retry":
        back, taken = operate.retry(conn, schema, batch)
        tally.retried += len(back)
        tally.taken += taken
        answered = {*back, *taken}
    else:
        done = operate.cancel(conn, schema, batch)
        tally.cancelled += sum(word == "cancelled" for word in done.values())
        tally.asked += sum(word == "asked" for word in done.values())
        answered = set(done)
    if by_id:  # of a filter's, those that ended meanwhile are nobody's error
        tally.missing += [job_id for job_id in batch if job_id not in answered]


def _pages(conn: Connection, schema: str, wanted: Filter, living: bool, upto: int) -> Iterator[list[int]]:
    from supervisor.db import operate

    after = 0
    while page := operate.pick(conn, schema, wanted, living=living, after=after, upto=upto, limit=BATCH):
        yield page
        after = page[-1]


def _ask(what: str, count: str) -> None:
    from supervisor import exits
    from supervisor.cli.failures import CommandFailed

    if not sys.stdin.isatty():
        raise CommandFailed(f"{count} jobs fit the filter: to {what} them without a question, give --yes", exits.USAGE)
    typer.confirm(f"{what} {count} jobs?", abort=True, err=True)
