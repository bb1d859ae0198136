"""`supervisor jobs retry` and `cancel`: by ids, or all that a filter names.

Elsewhere: how an order reaches many jobs (batches.py).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from supervisor import exits
from supervisor.cli.batches import Answered, Order, carry_out
from supervisor.cli.jobs import chosen
from supervisor.cli.options import DatabaseUrl, Json, KindFilter, QueueFilter, Schema, Yes

if TYPE_CHECKING:
    from psycopg import Connection

    from supervisor.db.operate import Filter

Ids = Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="The jobs.", show_default=False)]


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
    from supervisor.db import operate

    retried, taken = 0, []

    def send(conn: Connection, schema: str, batch: list[int]) -> Answered:
        nonlocal retried
        back, left = operate.retry(conn, schema, batch)
        retried += len(back)
        taken.extend(left)
        return Answered(back, left)

    wanted = _wanted(ids, status, ("dead", "cancelled"), queue, kind)
    settings = load(database_url=database_url, schema=schema)
    missing = carry_out(Order("retry", living=False, send=send), settings, ids, wanted, yes=yes)
    if as_json:
        output.print_json({"retried": retried, "unique_key_taken": taken, "missing": missing})
    else:
        output.console().print(f"{output.count(retried)} put back", style="green" if retried else "yellow")
        if taken:
            say(f"left alone: {_some(taken)}: a living job holds their unique key; cancel that one first")
        if missing:
            say(f"neither dead nor cancelled: {_some(missing)}")
    if missing or taken:
        raise typer.Exit(exits.FAILED)


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
    from supervisor.db import operate

    words: Counter[str] = Counter()

    def send(conn: Connection, schema: str, batch: list[int]) -> Answered:
        done = operate.cancel(conn, schema, batch)
        words.update(done.values())
        return Answered(done)

    wanted = _wanted(ids, status, ("queued", "running"), queue, kind)
    settings = load(database_url=database_url, schema=schema)
    missing = carry_out(Order("cancel", living=True, send=send), settings, ids, wanted, yes=yes)
    cancelled, asked = words["cancelled"], words["asked"]
    if as_json:
        output.print_json({"cancelled": cancelled, "asked": asked, "missing": missing})
    else:
        told = f", {output.count(asked)} running and told to stop" if asked else ""
        style = "green" if cancelled + asked else "yellow"
        output.console().print(f"{output.count(cancelled)} cancelled{told}", style=style)
        if missing:
            say(f"neither queued nor running: {_some(missing)}")
    if missing:
        raise typer.Exit(exits.FAILED)


def _wanted(
    ids: list[int] | None, status: list[str] | None, allowed: tuple[str, ...], queue: str | None, kind: str | None
) -> Filter | None:
    from supervisor.cli.failures import wrong_use

    filtered = bool(status) or queue is not None or kind is not None
    if filtered == bool(ids):
        raise wrong_use("[ID]...", "or a filter of --status, --queue and --kind is needed: one of the two")
    return chosen(status, allowed, queue, kind) if filtered else None


def _some(ids: list[int]) -> str:
    more = f" and {len(ids) - 10} more" if len(ids) > 10 else ""
    return ("job " if len(ids) == 1 else "jobs ") + ", ".join(map(str, ids[:10])) + more
