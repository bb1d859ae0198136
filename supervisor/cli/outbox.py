"""`supervisor outbox status`, `list`, `replay` and `drop`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from supervisor import exits
from supervisor.cli.options import DatabaseUrl, Json, Schema, Yes

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import Connection

Topic = Annotated[str | None, typer.Option("--topic", help="Only events of this topic.", show_default=False)]
Ids = Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="The parked events.", show_default=False)]
_BATCH = 500


def status(database_url: DatabaseUrl = None, schema: Schema = None, as_json: Json = False) -> None:
    """Show what is pending and parked, and the relays."""
    from supervisor.cli import output
    from supervisor.cli.service import connection, load
    from supervisor.db import events
    from supervisor.db.operate import refusals

    settings = load(database_url=database_url, schema=schema)
    with connection(settings) as conn, refusals(settings.schema_):
        state, relays = events.state(conn, settings.schema_), events.relays(conn, settings.schema_)
    if as_json:
        output.print_json({**state._asdict(), "relays": relays})
        return
    out = output.console()
    lag = f", the first for {output.length(state.oldest_s)}" if state.pending else ""
    out.print(f"{output.count(state.pending)} pending{lag}; {output.count(state.retrying)} of them refused before")
    style = "bold red" if state.parked else ""
    out.print(
        f"{output.count(state.parked)} parked; {output.count(state.inbox_parked)} parked by consumers", style=style
    )
    if state.unled:
        out.print(f"{state.unled} of 64 parts are led by no relay", style="bold red" if state.pending else "yellow")
    columns = ("relay", "host", "pid", "broker", "parts", "published", "parked", "broker says")
    shown = output.table("Relays", columns, right=("pid", "parts", "published", "parked"), fold=("broker says",))
    for relay in relays:
        names = ("name", "host", "pid", "broker", "parts", "published", "parked", "broker_error")
        shown.add_row(*(output.cell(relay[name]) for name in names))
    if relays:
        out.print(shown)


def list_(
    sent: Annotated[bool, typer.Option("--sent", help="Published ones that are kept, newest first.")] = False,
    pending: Annotated[bool, typer.Option("--pending", help="Those not published yet.")] = False,
    topic: Topic = None,
    after: Annotated[int, typer.Option(help="Begin beyond this id.")] = -1,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The most to show.")] = 50,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """List parked events; or pending, or published ones."""
    from supervisor.cli import output
    from supervisor.cli.failures import wrong_use
    from supervisor.cli.service import connection, load
    from supervisor.db import events
    from supervisor.db.operate import refusals

    if sent and pending:
        raise wrong_use("--sent", "and --pending exclude each other")
    place = "sent" if sent else "pending" if pending else "parked"
    settings = load(database_url=database_url, schema=schema)
    with connection(settings) as conn, refusals(settings.schema_):
        found = events.events(conn, settings.schema_, place, topic=topic, after=after, limit=limit)
    if as_json:
        output.print_json({"place": place, "events": found})
        return
    if not found:
        output.console().print(f"no {place} events")
        return
    last = {"parked": "parked_at", "sent": "sent_at", "pending": "retry_at"}[place]
    # The event's own id is in the answer for programs: here it would leave no room for the error.
    columns = ["id", "topic", "key", "made", "attempts", last.replace("_at", ""), "error"]
    shown = output.table(
        f"{place.capitalize()} events", columns, right=("id", "attempts"), fold=("topic", "key", "error")
    )
    for event in found:
        shown.add_row(
            output.cell(event["id"]),
            output.cell(event["topic"]),
            output.cell(event["key"]),
            output.cell(output.ago(event["created_at"])),
            output.cell(event["attempts"]),
            output.cell(output.ago(event[last])),
            output.cell(output.first_line(event.get("last_error"))),
        )
    output.console().print(shown)


def replay(
    ids: Ids = None,
    every: Annotated[bool, typer.Option("--all", help="Every parked event, or all of --topic.")] = False,
    topic: Topic = None,
    yes: Yes = False,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """Put parked events back into the outbox, at their old places; what their keys held back follows them."""
    _order("replay", "put back", ids, every, topic, yes, database_url, schema, as_json)


def drop(
    ids: Ids = None,
    every: Annotated[bool, typer.Option("--all", help="Every parked event, or all of --topic.")] = False,
    topic: Topic = None,
    yes: Yes = False,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """Forget parked events for good: they are never published; what their keys held back goes on."""
    _order("drop", "dropped", ids, every, topic, yes, database_url, schema, as_json)


def _order(
    word: str,
    done: str,
    ids: list[int] | None,
    every: bool,
    topic: str | None,
    yes: bool,
    database_url: str | None,
    schema: str | None,
    as_json: bool,
) -> None:
    from supervisor.cli import output
    from supervisor.cli.failures import say, wrong_use
    from supervisor.cli.service import connection, load
    from supervisor.db import events
    from supervisor.db.operate import refusals

    if every == bool(ids) or (topic is not None and not every):
        raise wrong_use("[ID]...", "or --all, with --topic for some of them, is needed: one of the two")
    act: Callable[[Connection, str, list[int]], list[int]] = events.replay if word == "replay" else events.drop
    settings = load(database_url=database_url, schema=schema)
    touched: list[int] = []
    missing: list[int] = []
    with connection(settings) as conn, refusals(settings.schema_):
        if ids:
            touched = act(conn, settings.schema_, ids)
            missing = sorted(set(ids) - set(touched))
        else:
            if not yes:
                which = "all parked events" if topic is None else f"all parked events of topic {topic!r}"
                typer.confirm(f"{word} {which}?", abort=True, err=True)
            after = -1
            while batch := _ids(
                events.events(conn, settings.schema_, "parked", topic=topic, after=after, limit=_BATCH)
            ):
                touched += act(conn, settings.schema_, batch)
                after = batch[-1]
    if as_json:
        output.print_json({done.replace(" ", "_"): len(touched), "missing": missing})
    else:
        output.console().print(f"{output.count(len(touched))} {done}", style="green" if touched else "yellow")
        if missing:
            say(f"not parked: {', '.join(map(str, missing[:10]))}{' and more' if len(missing) > 10 else ''}")
    if missing:
        raise typer.Exit(exits.FAILED)


def _ids(found: list[dict[str, Any]]) -> list[int]:
    return [event["id"] for event in found]
