"""`supervisor queues list`, `pause`, `resume`, `set` and `unset`: how queues are set, and setting them.

Always true: a limit that `set` puts on where there was none is counted before the command ends, so it is
exact from then on, with or without a supervisor of this release.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supervisor.cli.options import DatabaseUrl, Json, Schema

if TYPE_CHECKING:
    from datetime import datetime

    from psycopg import Connection

    from supervisor.db.queues import QueueSettings

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.", show_default=False)]
_COUNT_S = 10.0
_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Shown:
    """A line of the list. `running`: places taken, where there is a limit."""

    queue: str
    paused_at: datetime | None = None
    paused_by: str | None = None
    max_running: int | None = None
    running: int | None = None
    rate_limit: int | None = None
    rate_period_s: float | None = None


def list_(database_url: DatabaseUrl = None, schema: Schema = None, as_json: Json = False) -> None:
    """List the queues in use and how they are set."""
    from dataclasses import asdict

    from supervisor.cli import output
    from supervisor.cli.service import connection, load
    from supervisor.db import queues

    settings = load(database_url=database_url, schema=schema)
    with connection(settings) as conn:
        stored = {one.name: one for one in queues.settings(conn, settings.schema_)}
        names = sorted({*stored, *queues.names(conn, settings.schema_)})
    lines = [_shown(name, stored.get(name)) for name in names]
    if as_json:
        output.print_json({"queues": [asdict(line) for line in lines]})
        return
    out = output.console()
    if not lines:
        out.print("no queue has jobs or settings", style="dim")
        return
    right = ("at most", "of these run", "starts")
    table = output.table("", ("queue", "claims", *right), right=right)
    table.title = None
    for line in lines:
        since = f"paused {output.ago(line.paused_at)}" + (f" by {line.paused_by}" if line.paused_by else "")
        table.add_row(
            output.cell(line.queue, "bold"),
            output.cell(since, "yellow") if line.paused_at else output.cell("open", "green"),
            output.cell(line.max_running),
            output.cell(line.running),
            output.cell(output.rate(line.rate_limit, line.rate_period_s)),
        )
    out.print(table)


def pause(
    queue: Queue,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who does it.  [default: the user's name]", show_default=False)
    ] = None,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """Claim nothing more from a queue; what runs goes on, and jobs can be added."""
    from supervisor.queues import check_settings, pause_queue

    who = by if by is not None else _user()
    check_settings(queue, by=who)
    _order(
        queue, database_url, schema, as_json,
        lambda conn, where: pause_queue(conn, queue, by=who, schema=where), "paused", "was paused already",
    )  # fmt: skip


def resume(queue: Queue, database_url: DatabaseUrl = None, schema: Schema = None, as_json: Json = False) -> None:
    """Claim from a paused queue again."""
    from supervisor.queues import check_settings, resume_queue

    check_settings(queue)
    _order(
        queue, database_url, schema, as_json,
        lambda conn, where: resume_queue(conn, queue, schema=where), "resumed", "was not paused",
    )  # fmt: skip


def set_(
    queue: Queue,
    max_running: Annotated[
        int | None,
        typer.Option(metavar="N", help="The most of its jobs that run at one time in the cluster.", show_default=False),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="N/PERIOD",
            help="The most of its jobs that start in a period, evenly: 10/s, 100/min, 1000/h, 5/d, 20/90s.",
            show_default=False,
        ),
    ] = None,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """Limit a queue; jobs that run already count, and none is interrupted."""
    from supervisor.cli import output
    from supervisor.cli.failures import wrong_use
    from supervisor.queues import check_settings, read_rate, set_queue

    if max_running is None and rate is None:
        raise wrong_use("nothing to set:", "give --max-running, --rate or both")
    limit, period_s = read_rate(rate) if rate is not None else (None, None)
    check_settings(queue, max_running=max_running, rate_limit=limit, rate_period=period_s)

    def order(conn: Connection, where: str) -> bool:
        set_queue(conn, queue, max_running=max_running, rate_limit=limit, rate_period=period_s, schema=where)
        _count(conn, where, queue)
        return True

    said = [f"runs at most {max_running} at one time"] if max_running is not None else []
    said += [f"starts at most {output.rate(limit, period_s)}"] if limit is not None else []
    _order(queue, database_url, schema, as_json, order, " and ".join(said), "")


def unset(
    queue: Queue,
    what: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="Only this: max_running or rate.  [default: both]", show_default=False),
    ] = None,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """Take a queue's limits away; a pause stays."""
    from typing import cast

    from supervisor.queues import What, check_settings, unset_queue

    check_settings(queue, what=what)
    named = "limit" if what is None else what
    _order(
        queue, database_url, schema, as_json,
        lambda conn, where: unset_queue(conn, queue, what=cast("What | None", what), schema=where),
        f"has no {named} any more", f"had no {named}",
    )  # fmt: skip


def _order(
    queue: str, database_url: str | None, schema: str | None, as_json: bool, order: Any, done: str, as_before: str
) -> None:
    from dataclasses import asdict

    from supervisor.cli import output
    from supervisor.cli.failures import say
    from supervisor.cli.service import connection, load
    from supervisor.db import queues

    settings = load(database_url=database_url, schema=schema)
    where = settings.schema_
    with connection(settings) as conn:
        changed = bool(order(conn, where))
        now = next((one for one in queues.settings(conn, where) if one.name == queue), None)
        known = queue in queues.names(conn, where)
    if as_json:
        output.print_json({**asdict(_shown(queue, now)), "changed": changed})
    else:
        text = f"queue {output.clean(queue)} {done if changed else as_before}"
        output.console().print(text, style="green" if changed else "yellow", markup=False)
    if not known:
        say(f"no job of queue {output.clean(queue)!r} is known yet: is the name right?")


def _count(conn: Connection, schema: str, queue: str) -> None:
    """Count what runs for a new limit; a supervisor that is faster, or goes on with it, is welcome."""
    from supervisor.cli.failures import say
    from supervisor.db import queues

    until = time.monotonic() + _COUNT_S
    for one in queues.settings(conn, schema):
        if one.name == queue and one.max_running is not None and not one.counted:
            counting = queues.Counting(one)
            while counting.try_step(conn, schema) is None:
                if time.monotonic() > until:
                    say("the jobs that run are not counted yet: claims begin when a supervisor has done that")
                    return
                time.sleep(0 if counting.reading else _AGAIN_S)


def _shown(name: str, settings: QueueSettings | None) -> Shown:
    if settings is None:
        return Shown(name)
    return Shown(
        name,
        settings.paused_at,
        settings.paused_by,
        settings.max_running,
        settings.running,
        settings.rate_limit,
        settings.rate_period_s,
    )


def _user() -> str | None:
    import getpass

    try:
        return getpass.getuser()[:100]
    except (OSError, KeyError):
        return None
