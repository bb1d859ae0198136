"""`supervisor jobs story`: what the database knows of one job, in order."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from supervisor.cli.options import DatabaseUrl, Json, Schema

if TYPE_CHECKING:
    from rich.console import Console

    from supervisor.story import Story


def story(
    job_id: Annotated[int, typer.Argument(metavar="ID", help="The job.", show_default=False)],
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """Tell one job's story: each step with its time, errors in full, and what is not kept of it."""
    from supervisor.cli import output
    from supervisor.cli.jobs import no_such_job
    from supervisor.cli.service import connection, load
    from supervisor.db import operate
    from supervisor.story import tell

    settings = load(database_url=database_url, schema=schema)
    with connection(settings) as conn:
        row = operate.show_job(conn, settings.schema_, job_id, most=0)
        now = operate.now(conn, settings.schema_)
    if row is None:
        raise no_such_job(job_id, settings.schema_)
    told = tell(row, now)
    if as_json:
        output.print_json(told.document())
    else:
        _show(output.console(), told)


def _show(out: Console, told: Story) -> None:
    from rich.text import Text

    from supervisor.cli import output
    from supervisor.wording import clean, length

    title = Text.assemble((f"job {told.id}", "bold"), "  ", output.status_cell(told.status), "  ", clean(told.kind))
    out.print(title)
    table = output.table("", ("at", "after", "what happened"), right=("after",), fold=("what happened",))
    table.title = None
    for step in told.steps:
        at = "-" if step.at is None else step.at.astimezone().isoformat(" ", "milliseconds")[:23]
        after = "" if step.after_s is None else f"+{length(step.after_s)}"
        text = Text(clean(step.text), style=output.STYLES.get(step.what, ""))
        if step.to_come and step.at is not None:
            text.append(f" (in {length((step.at - datetime.now(UTC)).total_seconds())})", style="dim")
        for line in (step.error or "").strip().splitlines():
            text.append("\n  " + clean(line), style="dim")
        table.add_row(at, after, text)
    out.print(table)
    for sentence in told.unknown:
        out.print(Text(sentence, style="dim"))
