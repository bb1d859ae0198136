"""`supervisor jobs retry`, `cancel` and `release-order`: by ids, or all that a filter names.

Elsewhere: how an order reaches many jobs (batches.py).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from supervisor import exits
from supervisor.cli.batches import Answered, Order, carry_out, look
from supervisor.cli.jobs import chosen
from supervisor.cli.options import DatabaseUrl, Json, KindFilter, QueueFilter, Schema, Yes

if TYPE_CHECKING:
    from psycopg import Connection

    from supervisor.db.operate import Filter
    from supervisor.settings import Settings

Ids = Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="The jobs.", show_default=False)]


Older = Annotated[
    str | None,
    typer.Option(
        "--older-than", metavar="LENGTH", help="Only jobs enqueued longer ago: 90, 10m, 6h, 2d.", show_default=False
    ),
]
Key = Annotated[
    str | None,
    typer.Option("--key", help="Only jobs with this unique, ordering, concurrency or rate key.", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say how many jobs the filter names, and do nothing.")]

_GRACE_S = 5.0
_LONGEST_GRACE_S = 86400.0
_LONGEST_AGE_S = 100 * 366 * 86400.0


def retry(
    ids: Ids = None,
    status: Annotated[
        list[str] | None, typer.Option("--status", "-s", help="dead or cancelled; repeatable.", show_default=False)
    ] = None,
    queue: QueueFilter = None,
    kind: KindFilter = None,
    older_than: Older = None,
    key: Key = None,
    dry_run: DryRun = False,
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

    wanted = wanted_of(ids, status, ("dead", "cancelled"), queue, kind, older_than, key)
    settings = load(database_url=database_url, schema=schema)
    order = Order("retry", living=False, send=send)
    if dry_run:
        say_found(order, settings, wanted, as_json=as_json)
        return
    missing = carry_out(order, settings, ids, wanted, yes=yes)
    if as_json:
        output.print_json({"retried": retried, "unique_key_taken": taken, "missing": missing})
    else:
        output.console().print(f"{output.count(retried)} put back", style="green" if retried else "yellow")
        if taken:
            say(f"left alone: {some(taken)}: a living job holds their unique key; cancel that one first")
        if missing:
            say(f"neither dead nor cancelled: {some(missing)}")
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
    older_than: Older = None,
    key: Key = None,
    force: Annotated[
        bool, typer.Option("--force", help="Kill the workers of running ones that do not stop within --grace.")
    ] = False,
    grace: Annotated[
        str | None,
        typer.Option(metavar="LENGTH", help="With --force: how long a handler may take to stop.  [default: 5s]"),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """Take jobs out of their queues; the handlers of running ones are told to stop."""
    from supervisor.cli import output
    from supervisor.cli.failures import say, wrong_use
    from supervisor.cli.service import load
    from supervisor.db import operate

    if grace is not None and not force:
        raise wrong_use("--grace", "needs --force: without it no worker is killed")
    kill_s = (_GRACE_S if grace is None else _length("--grace", grace, _LONGEST_GRACE_S)) if force else None
    words: Counter[str] = Counter()

    def send(conn: Connection, schema: str, batch: list[int]) -> Answered:
        done = operate.cancel(conn, schema, batch, kill_s=kill_s)
        words.update(done.values())
        return Answered(done)

    wanted = wanted_of(ids, status, ("queued", "running"), queue, kind, older_than, key)
    settings = load(database_url=database_url, schema=schema)
    order = Order("cancel", living=True, send=send)
    if dry_run:
        say_found(order, settings, wanted, as_json=as_json)
        return
    missing = carry_out(order, settings, ids, wanted, yes=yes)
    cancelled, asked = words["cancelled"], words["asked"]
    if as_json:
        output.print_json({"cancelled": cancelled, "asked": asked, "missing": missing})
    else:
        told = f", {output.count(asked)} running and told to stop" if asked else ""
        if asked and kill_s is not None:
            told += f" within {output.length(kill_s)}"
        style = "green" if cancelled + asked else "yellow"
        output.console().print(f"{output.count(cancelled)} cancelled{told}", style=style)
        if missing:
            say(f"neither queued nor running: {some(missing)}")
    if missing:
        raise typer.Exit(exits.FAILED)


def release_order(
    ids: Ids = None,
    queue: QueueFilter = None,
    kind: KindFilter = None,
    older_than: Older = None,
    key: Key = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """Let the next jobs go whose ordering keys dead ones hold (on_dead="hold")."""
    from supervisor.cli import output
    from supervisor.cli.failures import say
    from supervisor.cli.service import load
    from supervisor.db import operate

    released = 0

    def send(conn: Connection, schema: str, batch: list[int]) -> Answered:
        nonlocal released
        done = operate.release_order(conn, schema, batch)
        released += len(done)
        return Answered(done)

    wanted = wanted_of(ids, None, ("dead",), queue, kind, older_than, key)
    settings = load(database_url=database_url, schema=schema)
    order = Order("release the keys of", living=False, send=send)
    if dry_run:
        say_found(order, settings, wanted, as_json=as_json)
        return
    missing = carry_out(order, settings, ids, wanted, yes=yes)
    if as_json:
        output.print_json({"released": released, "missing": missing})
    else:
        said = f"{output.count(released)} no longer hold their ordering keys"
        output.console().print(said, style="green" if released else "yellow")
        if missing:
            say(f"held no ordering key, or not dead: {some(missing)}")
    if missing:
        raise typer.Exit(exits.FAILED)


def wanted_of(
    ids: list[int] | None,
    status: list[str] | None,
    allowed: tuple[str, ...],
    queue: str | None,
    kind: str | None,
    older_than: str | None,
    key: str | None,
) -> Filter | None:
    """The filter of these options; None when ids are given instead."""
    from dataclasses import replace

    from supervisor.cli.failures import wrong_use
    from supervisor.payload import check_key

    filtered = bool(status) or any(given is not None for given in (queue, kind, older_than, key))
    if filtered == bool(ids):
        raise wrong_use(
            "[ID]...", "or a filter of --status, --queue, --kind, --older-than and --key is needed: one of the two"
        )
    if not filtered:
        return None
    if key is not None:
        check_key("--key", key)
    older_s = None if older_than is None else _length("--older-than", older_than, _LONGEST_AGE_S)
    return replace(chosen(status, allowed, queue, kind), older_s=older_s, key=key)


def say_found(order: Order, settings: Settings, wanted: Filter | None, *, as_json: bool) -> None:
    """What a filter names, for --dry-run."""
    from supervisor.cli import output
    from supervisor.cli.failures import wrong_use

    if wanted is None:
        raise wrong_use("--dry-run", "is for filters, not for ids")
    found = look(order, settings, wanted)
    if as_json:
        output.print_json({"jobs": found.total, "more": found.more, "first": found.first})
    else:
        output.console().print(f"would {order.word} {found.words}", style="yellow")


def _length(name: str, text: str, most: float) -> float:
    from supervisor.cli.enqueue import read_option, seconds
    from supervisor.cli.failures import wrong_use

    value: float = read_option(name, text, seconds)
    if value > most:
        raise wrong_use(name, f"is above {most:g} seconds")
    return value


def some(ids: list[int]) -> str:
    """The first of *ids*, in words."""
    more = f" and {len(ids) - 10} more" if len(ids) > 10 else ""
    return ("job " if len(ids) == 1 else "jobs ") + ", ".join(map(str, ids[:10])) + more
