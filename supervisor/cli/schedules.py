"""`supervisor schedules list`, `pause`, `resume`, `run`, `set` and `unset`: entries of cron and orders for them.

Always true: an expression, a zone or a policy that cannot be used is refused before the database is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from supervisor.cli.options import DatabaseUrl, Json, Schema

if TYPE_CHECKING:
    from supervisor.db.schedules import Schedule

Name = Annotated[str, typer.Argument(metavar="NAME", help="The entry's name: KIND, or KIND:NAME.", show_default=False)]
By = Annotated[
    str | None, typer.Option(metavar="NAME", help="Who does it.  [default: the user's name]", show_default=False)
]
_STYLES = {"open": "green", "paused": "yellow", "retired": "dim", "broken": "bold red"}


def list_(
    runs: Annotated[int, typer.Option(min=1, max=1000, help="How many next runs of each to show.")] = 1,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """List cron entries, with what is in force and when they run next."""
    from supervisor.cli import output
    from supervisor.cli.service import connection, load
    from supervisor.db import schedules

    settings = load(database_url=database_url, schema=schema)
    with connection(settings) as conn:
        found = schedules.listed(conn, settings.schema_)
    if as_json:
        output.print_json({"schedules": [_document(one, runs) for one in found]})
        return
    out = output.console()
    if not found:
        out.print("no handler that has run here has cron entries", style="dim")
        return
    columns = ("name", "cron", "time zone", "missed", "state", "next", "last", "fired", "skipped")
    table = output.table("", columns, right=("fired", "skipped"), fold=("next",))
    table.title = None
    for one in found:
        table.add_row(
            output.cell(one.name, "bold"),
            output.cell(one.cron + (" (set)" if one.set_at else "")),
            output.cell(one.tz),
            output.cell(_missed(one.missed)),
            output.cell(_state(one), _STYLES[one.state]),
            output.cell(_next(one, runs)),
            output.cell(output.ago(one.last_tick) if one.last_tick else None),
            output.cell(output.count(one.fired)),
            output.cell(output.count(one.skipped)),
        )
    out.print(table)


def pause(
    name: Name, by: By = None, database_url: DatabaseUrl = None, schema: Schema = None, as_json: Json = False
) -> None:
    """Fire nothing of an entry until it is resumed; what is due meanwhile does not count as missed."""
    _order("pause_schedule", name, {"by": _by(by)}, ("paused", "was paused already"), database_url, schema, as_json)


def resume(name: Name, database_url: DatabaseUrl = None, schema: Schema = None, as_json: Json = False) -> None:
    """Fire a paused entry again, from its next tick on."""
    _order("resume_schedule", name, {}, ("resumed", "was not paused"), database_url, schema, as_json)


def run(
    name: Name, by: By = None, database_url: DatabaseUrl = None, schema: Schema = None, as_json: Json = False
) -> None:
    """Add a job of an entry now, paused or not; its ticks stay as they are."""
    from supervisor.cli import output
    from supervisor.cli.service import connection, load
    from supervisor.db import schedules
    from supervisor.schedules import check_order

    who = _by(by)
    check_order(name, by=who)
    settings = load(database_url=database_url, schema=schema)
    with connection(settings) as conn:
        job, created = schedules.order(conn, "run_schedule", settings.schema_, {"name": name, "by": who})
    if as_json:
        output.print_json({"schedule": name, "id": job, "created": created})
        return
    text = f"job {job} added" if created else f"job {job} has the handler's unique key already: nothing was added"
    output.console().print(text, style="green" if created else "yellow", markup=False)


def set_(
    name: Name,
    cron: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help="Five fields, or six with a second first.", show_default=False),
    ] = None,
    tz: Annotated[str | None, typer.Option(metavar="ZONE", help="As in Europe/Paris.", show_default=False)] = None,
    missed: Annotated[
        str | None, typer.Option(metavar="POLICY", help="skip, once, or a number up to 1000.", show_default=False)
    ] = None,
    by: By = None,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """Set when an entry runs, whatever its handler says, deploys included, until `unset`."""
    from supervisor.cli.failures import wrong_use
    from supervisor.schedules import check_order, read_missed

    if cron is None and tz is None and missed is None:
        raise wrong_use("nothing to set:", "give --cron, --tz or --missed")
    most = None if missed is None else read_missed(missed)
    check_order(name, cron=cron, tz=tz, missed=most)
    parameters: dict[str, object] = {"cron": cron, "tz": tz, "missed": most, "by": _by(by)}
    _order("set_schedule", name, parameters, ("set", "set"), database_url, schema, as_json)


def unset(name: Name, database_url: DatabaseUrl = None, schema: Schema = None, as_json: Json = False) -> None:
    """Go back to what the handler says; a pause stays."""
    done = ("is as its handler says again", "was as its handler says")
    _order("unset_schedule", name, {}, done, database_url, schema, as_json)


def _order(
    order: str,
    name: str,
    parameters: dict[str, object],
    done: tuple[str, str],
    database_url: str | None,
    schema: str | None,
    as_json: bool,
) -> None:
    from supervisor.cli import output
    from supervisor.cli.service import connection, load
    from supervisor.db import schedules
    from supervisor.schedules import check_order

    by = parameters.get("by")
    check_order(name, by=by if isinstance(by, str) else None)
    settings = load(database_url=database_url, schema=schema)
    with connection(settings) as conn:
        (answer,) = schedules.order(conn, order, settings.schema_, {"name": name, **parameters})
        now = next(one for one in schedules.listed(conn, settings.schema_) if one.name == name)
    changed = answer is not False
    if as_json:
        output.print_json({**_document(now, 1), "changed": changed})
        return
    text = f"schedule {output.clean(name)} {done[0] if changed else done[1]}; next: {_next(now, 1) or 'never'}"
    output.console().print(text, style="green" if changed else "yellow", markup=False)


def _document(one: Schedule, runs: int) -> dict[str, Any]:
    from supervisor.schedules import missed_word, next_runs

    made = {key: value for key, value in one._asdict().items() if key != "now"}
    words = {"missed": missed_word(one.missed), "defined_missed": missed_word(one.defined_missed)}
    return {**made, **words, "state": one.state, "next": [run.isoformat() for run in next_runs(one, runs)]}


def _next(one: Schedule, runs: int) -> str | None:
    from supervisor.schedules import next_runs

    found = [f"{run:%Y-%m-%d %H:%M:%S %z}" for run in next_runs(one, runs)]
    return "\n".join(found) or None


def _state(one: Schedule) -> str:
    from supervisor.cli import output

    if one.state == "paused":
        return f"paused {output.ago(one.paused_at)}" + (f" by {one.paused_by}" if one.paused_by else "")
    return f"{one.state}: {one.problem}" if one.state == "broken" else one.state


def _missed(missed: int) -> str:
    from supervisor.schedules import missed_word

    return missed_word(missed)


def _by(given: str | None) -> str | None:
    import getpass

    if given is not None:
        return given
    try:
        return getpass.getuser()[:100]
    except (OSError, KeyError):
        return None
