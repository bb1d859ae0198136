"""`supervisor jobs list` and `show`: look at jobs, whatever has become of them.

Elsewhere: a job's steps in order (story.py); orders for jobs (orders.py).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supervisor.cli.options import DatabaseUrl, Json, KindFilter, QueueFilter, Schema
from supervisor.cli.selection import chosen

if TYPE_CHECKING:
    from rich.console import Console

    from supervisor.cli.failures import CommandFailed
    from supervisor.db.gates import JobGate

STATUSES = ("queued", "running", "done", "dead", "cancelled")


def list_(
    status: Annotated[
        list[str] | None,
        typer.Option("--status", "-s", help=f"{', '.join(STATUSES)} or scheduled; repeatable.", show_default=False),
    ] = None,
    queue: QueueFilter = None,
    kind: KindFilter = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="Jobs on the page.")] = 20,
    before: Annotated[
        int | None, typer.Option(metavar="ID", help="The page after this one: only lower ids.", show_default=False)
    ] = None,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """List jobs, latest first."""
    from supervisor.cli import output
    from supervisor.cli.service import connection, load
    from supervisor.db import browse

    wanted = chosen(status, STATUSES, queue, kind)
    settings = load(database_url=database_url, schema=schema)
    with connection(settings) as conn:
        found = browse.page(conn, settings.schema_, browse.Search(wanted), before=before, limit=limit)
    rows, following = found.rows, found.older
    if as_json:
        output.print_json({"jobs": [asdict(row) for row in rows], "next_before": following})
        return
    out = output.console()
    if not rows:
        out.print("no such jobs", style="dim")
        return
    columns = ("id", "status", "queue", "kind", "prio", "tries", "crashes", "when", "error")
    table = output.table("", columns, right=("id", "prio", "tries", "crashes"), fold=("error",))
    table.title = None
    for row in rows:
        when = row.finished_at or (row.started_at if row.status == "running" else row.run_at)
        word = "due " if row.status == "queued" else "since " if row.status == "running" else ""
        why = output.first_line(row.last_error, 120)
        if row.reason and row.status == "dead":
            why = f"{row.reason}: {why}" if why else row.reason
        table.add_row(
            str(row.id),
            output.status_cell(row.status),
            output.cell(row.queue),
            output.cell(row.kind),
            str(row.priority),
            f"{row.attempts}/{row.max_attempts}",
            str(row.crashes),
            f"waits for {row.waits_for}" if row.waits_for else word + output.ago(when),
            output.cell(why or ""),
        )
    out.print(table)
    if following is not None:
        out.print(f"more: --before {following}", style="dim")


def no_such_job(job_id: int, schema: str) -> CommandFailed:
    """What is said of an id that the database does not know."""
    from supervisor.cli.failures import CommandFailed

    return CommandFailed(
        f"job {job_id} is not in schema {schema!r}: it never was, or it is past "
        "SUPERVISOR_KEEP_HISTORY_DAYS (done) or SUPERVISOR_KEEP_DEAD_DAYS (dead)"
    )


def show(
    job_id: Annotated[int, typer.Argument(metavar="ID", help="The job.", show_default=False)],
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """Show everything that is known of one job: payload, times, the errors of its attempts."""
    from supervisor.cli import output
    from supervisor.cli.service import connection, load
    from supervisor.db import gates, operate

    settings = load(database_url=database_url, schema=schema)
    with connection(settings) as conn:
        row = operate.show_job(conn, settings.schema_, job_id)
        gate = None if row is None else gates.of_job(conn, settings.schema_, job_id)
    if row is None:
        raise no_such_job(job_id, settings.schema_)
    if as_json:
        output.print_json({**row, "gate": gate and gate._asdict()})
        return
    _show(output.console(), row, gate)


_TIMES = ("created_at", "run_at", "started_at", "finished_at", "cancel_at", "locked_until")


def _show(out: Console, row: dict[str, Any], gate: JobGate | None) -> None:
    import json

    from rich.table import Table
    from rich.text import Text

    from supervisor.cli import output

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    why = f" ({output.clean(row['reason'])})" if row["reason"] else ""
    grid.add_row("job", Text.assemble((str(row["id"]), "bold"), "  ", output.status_cell(row["status"]), why))
    grid.add_row("kind", output.cell(row["kind"], "bold"))
    grid.add_row("queue", Text(f"{output.clean(row['queue'])}, priority {row['priority']}"))
    grid.add_row("attempts", f"{row['attempts']} of {row['max_attempts']}")
    crashes = f"{row['crashes']} of {row['max_crashes']}"
    grid.add_row("crashes", crashes + (", suspect: runs alone next" if row["suspect"] else ""))
    if gate is not None and gate.words:
        grid.add_row("waits for", output.cell(gate.words + (f"; {gate.whom}" if gate.whom else "")))
    if gate is not None and gate.holds:
        behind = f"{output.count(gate.behind or 0)} jobs wait behind it"
        said = f"held by this dead job, {behind}: supervisor jobs retry or release-order {row['id']}"
        grid.add_row("ordering key", output.cell(f"{gate.ordering_key} ({said})", "yellow"))
    if gate is not None and gate.children:
        grid.add_row("before jobs", ", ".join(map(str, gate.children)))
    for name in ("unique_key", "ordering_key", "concurrency_key", "rate_key", "locked_by"):
        if row[name]:
            grid.add_row(name.replace("_", " "), output.cell(row[name]))
    if row["timeout_s"] is not None:
        grid.add_row("timeout", output.length(row["timeout_s"]))
    for name in _TIMES:
        if row[name] is not None:
            said = row[name].astimezone().isoformat(" ", "milliseconds")
            grid.add_row(name.removesuffix("_at").replace("_", " "), f"{said}  ({output.ago(row[name])})")
    if row["progress"] is not None:
        note = f"  {output.clean(row['progress_note'])}" if row["progress_note"] else ""
        grid.add_row("progress", Text(f"{row['progress']:.0%}{note}  ({output.ago(row['progress_at'])})"))
    if row["result_bytes"] is not None:
        lines = json.dumps(row["result"], ensure_ascii=False, indent=2).splitlines()
        kept = f"  (kept until {row['result_until'].astimezone().isoformat(' ', 'seconds')})"
        grid.add_row("result", Text("\n".join(map(output.clean, lines)) + kept))
    elif row["result_until"] is not None:
        grid.add_row("result", Text("past its time (result_for)", style="dim"))
    for name in ("payload", "headers"):
        if row[name] is None:
            grid.add_row(name, Text("not kept (SUPERVISOR_KEEP_PAYLOAD)", style="dim"))
        elif row[name] or name == "payload":
            lines = json.dumps(row[name], ensure_ascii=False, indent=2).splitlines()
            grid.add_row(name, Text("\n".join(map(output.clean, lines))))
    out.print(grid)
    errors = row["errors"] or []
    if errors:
        table = output.table("Errors, oldest first", ("at", "event", "attempt", "error"), fold=("error",))
        for error in errors:
            lines = str(error.get("error") or "").strip().splitlines()
            table.add_row(
                output.cell(str(error.get("at"))[:23]),
                output.cell(error.get("event")),
                output.cell(error.get("attempt")),
                Text("\n".join(map(output.clean, lines))),
            )
        out.print(table)
    elif row["last_error"]:
        out.print(Text("last error: " + output.clean(row["last_error"].strip())))
